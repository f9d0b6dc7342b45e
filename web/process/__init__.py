"""Resources that the rooms of one process share: threads, the publisher, garbage collection."""
