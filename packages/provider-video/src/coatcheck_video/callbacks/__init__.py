"""How the callbacks of vendors are verified: one module per way of signing, used by the handlers.

A verified callback says which job it is about, and is a hint to ask the vendor now. Nothing here decides
what became of a job, knows a task, or does I/O.
"""
