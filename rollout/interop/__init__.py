"""fairbox inside other trainers: verl, SkyRL and verifiers.

Each module here imports the package that it is made for, when it is itself imported, and says which version it needs;
nothing else in fairbox imports these modules. `convert` modules turn trajectories into the other side's data; the rest
are classes that the other side loads by their path.
"""
