"""What an operator deploys: the compose file and the images."""
