"""The experiments of the paper: what to run (`plan`), what was found (`store`), how it is run (`run`), what it says (`report`).

Nothing here imports torch until a unit is performed, so that asking how a run is doing takes no time.
"""
