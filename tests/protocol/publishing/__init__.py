"""The publisher's API, in this process and in others."""
