"""What each word of the command line does; one file per word or family of words."""
