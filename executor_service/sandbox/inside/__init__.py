"""What runs between the server and a program: a launcher, started afresh for each run, and the init of its namespaces.

Invariants: nothing here imports anything but the standard library and this package, so that it starts in milliseconds
and holds nothing worth stealing; it is started with an empty environment and learns everything over one socket; every
failure is reported with the name of the stage that failed. It decides nothing about requests: see `executor_service`.
"""
