"""Between the messages of executor_service.v1 and the facts of `executor_service.model`, with all checks on the way.

Pure, and shared by clients and server. Grading and workspaces have their own beside their facts.
"""
