"""A durable buffer in object storage: producers append batches, one consumer reads them in order."""
