"""Kills a stage in this process, as SIGKILL does: nothing that handles exceptions sees it."""

from __future__ import annotations


class Killed(BaseException):
    """No Exception: no handler catches it."""


def kill_in(monkeypatch, module, name, after):
    """Make the call number `after` of module.name die."""
    original, calls = getattr(module, name), []

    def die(*args, **kwargs):
        calls.append(args)
        if len(calls) > after:
            raise Killed
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, die)
