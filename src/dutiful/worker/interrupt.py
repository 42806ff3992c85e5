"""How a thread is reached from outside."""

import ctypes


def raise_in(thread: int, error: type[Exception] | None) -> None:
    """Raise in the thread at its next Python instruction; None takes back what it has not met yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))
