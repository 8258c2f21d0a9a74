"""What producers use: tasks, enqueueing, handles on jobs, and control over both."""
