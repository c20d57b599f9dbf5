"""How people and programs reach a running mount: its control socket, the registry of mounts, signals, the mount table.

A daemon answers on a Unix socket in a directory that only its user may enter. A request is one line of JSON, so is each
reply; a bad request gets an error reply and never ends the daemon. The side of the command line is synchronous.
"""

from ckptfs.admin.control import ControlServer, Service
from ckptfs.admin.signals import stop_on_signals

__all__ = ["ControlServer", "Service", "stop_on_signals"]
