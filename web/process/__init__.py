"""Resources that all rooms of one process share: threads, the publisher, garbage collection."""
