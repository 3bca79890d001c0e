"""What Flower users see."""
