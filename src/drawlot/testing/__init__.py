"""Checks of a sampler's law, for drawlot's own tests and for whoever builds on it. Needs SciPy, loaded when used."""

from drawlot.testing.fit import FALSE_ALARM_RATE, Fit, chi_square, independence

__all__ = ["FALSE_ALARM_RATE", "Fit", "chi_square", "independence"]
