"""What happens to a request: asked, decided, claimed, settled; each transition one event, verified before use."""
