"""The asynchronous server: clocks, state, dispatch, the event loop, its hooks."""
