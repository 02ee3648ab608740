"""The tests of a law are tested themselves: what they pass, what they must not, and how often they cry wolf."""

import numpy as np
import pytest
from scipy.stats import binom, chi2

from drawlot.testing import FALSE_ALARM_RATE, chi_square, independence
from drawlot.testing.fit import LEAST_EXPECTED

LAW = np.arange(1, 17) / 136


@pytest.fixture
def counts():
    return np.random.default_rng(1).multinomial(1 << 20, LAW)


def test_right_counts_pass(counts):
    fit = chi_square(counts, LAW)
    assert fit.ok
    assert fit.bins == 16
    assert fit.high == pytest.approx(chi2.isf(FALSE_ALARM_RATE / 2, 15))
    assert fit.statistic == pytest.approx(((counts - counts.sum() * LAW) ** 2 / (counts.sum() * LAW)).sum())


def test_wrong_counts_fail(counts):
    counts[3] += 8000
    assert not chi_square(counts, LAW).ok


def test_counts_that_fit_too_well_fail():
    assert not chi_square(np.round((1 << 20) * LAW), LAW).ok


def test_one_hit_where_nothing_can_be_fails(counts):
    law = np.append(LAW, 0.0)
    assert chi_square(np.append(counts, 0), law).ok
    assert not chi_square(np.append(counts, 1), law).ok


def test_bins_are_merged_by_what_they_expect_and_not_by_what_was_counted():
    law = np.array([1e-5, 2e-5, 3e-5, 1 - 6e-5])
    assert chi_square([10, 20, 30, 999_940], law).bins == 1
    assert chi_square([0, 0, 60, 999_940], law).bins == 1
    assert chi_square([20, 40, 60, 1_999_880], law).bins == 2
    # All bins are small here: the last one is merged too.
    assert chi_square([60, 60, 60], np.full(3, 1 / 3)).bins == 1


def test_the_rate_of_false_alarms_is_stated_with_less_than_a_factor_of_ten():
    n, p = 1_000_000, LEAST_EXPECTED / 1_000_000
    hits = np.arange(1000)
    alarms = [k for k in hits if not chi_square([k, n - k], [p, 1 - p]).ok]
    assert FALSE_ALARM_RATE / 10 < binom.pmf(alarms, n, p).sum() < 10 * FALSE_ALARM_RATE


def test_a_law_must_be_a_law():
    for law in ([0.5, 0.4], [1.5, -0.5], [1.0]):
        with pytest.raises(ValueError, match="probabilities"):
            chi_square([500, 500], law)


def test_independent_columns_pass_and_dependent_ones_fail():
    rng = np.random.default_rng(2)
    table = rng.multinomial(1 << 22, np.outer(LAW, LAW).ravel()).reshape(16, 16)
    assert independence(table).ok
    assert independence(table).high == pytest.approx(chi2.isf(FALSE_ALARM_RATE / 2, 225))
    table[np.diag_indices(16)] += 600
    assert not independence(table).ok


def test_a_table_too_thin_for_its_cells_is_refused():
    with pytest.raises(ValueError, match="fewer than 100"):
        independence(np.full((4, 4), 99))
