"""Imported last by a fork server: forgets each Ctrl-C that came while it imported.

The process above has heard of it, too, and decides. The one that starts the server lets
it begin with SIGINT held back; a server that imports would end in a traceback.
"""

import signal
import threading

if threading.current_thread() is threading.main_thread():
    # What is ignored is no longer pending.
    _before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, _before)
