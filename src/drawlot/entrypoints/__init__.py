"""How people reach the engine: the offline class, the command line, the server."""
