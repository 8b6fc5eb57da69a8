"""Object stores on this machine, and a bucket for each test."""

from tests.object_stores import bucket, object_store

__all__ = ["bucket", "object_store"]
