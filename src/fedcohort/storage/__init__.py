"""The only room with SQL and file names: journal, segments, snapshots, disk."""
