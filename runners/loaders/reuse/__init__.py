"""PerFect (004 ch. 4): train on decoded samples used several times, then fine-tune without reuse."""
