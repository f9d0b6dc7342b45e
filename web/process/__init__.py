"""Resources that all packages of `web` share in one process: threads, the publisher and the garbage collector."""
