"""What a real deployment costs between pushing a task and having its reply."""
