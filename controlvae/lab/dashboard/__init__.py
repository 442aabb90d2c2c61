"""Local web page over run folders: live curves, latent sliders and targets of running jobs."""
