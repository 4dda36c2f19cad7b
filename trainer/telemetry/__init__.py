"""What a run says of itself: levels, frames, drift, anomalies, layers, profiles, phases, the machine."""
