"""The code between the server and a program: zygotes, the inits of boxes, and workers up to the program's start.

Invariants: nothing here imports anything but the standard library and this package, so that it holds nothing worth
stealing; it is started with the environment of programs and learns everything over sockets; every failure is reported
with the name of the stage that failed. It decides nothing about requests: see `executor_service`.
"""
