"""A CNN with a personal head, a learning rate schedule and a tracker."""
