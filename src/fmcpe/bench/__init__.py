"""The paper's experiments: plans (`plan`), execution (`run`), storage (`store`) and the report (`report`).

Torch is imported only when a unit is performed, so that ``fmcpe bench status`` starts quickly.
"""
