"""Medians, spreads and tables."""
from statistics import median


class Cells:
    """The rows of a run, asked by server, cell and group. Rows of failed turns have no figures."""

    def __init__(self, rows):
        self.rows = rows

    def values(self, key, cell, server, group=None):
        return [row[key] for row in self.rows
                if row["cell"] == cell and row["server"] == server and not row["error"]
                and (group is None or row["group"] == group) and row.get(key) is not None]

    def failed(self, cell, server):
        return any(row["error"] for row in self.rows if row["cell"] == cell and row["server"] == server)

    def median(self, key, cell, server):
        values = self.values(key, cell, server)
        return median(values) if values else None


def number(value, unit=""):
    """Three figures that mean something, more before the point than after it."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 4
    return f"{value:,.{digits}f}{unit}"


def spread(values, form=number):
    """Median (smallest to largest)."""
    if not values:
        return "-"
    if len(values) == 1:
        return form(values[0])
    return f"{form(median(values))} ({form(min(values))} to {form(max(values))})"


def ratio(value):
    return f"{value:.2f}"


def percent(value):
    """A ratio as a difference."""
    return f"{100 * (value - 1):+.1f} %"


def difference(ratios):
    """The median difference with its spread: "+8.3 % (+5.1 to +9.0)"."""
    if not ratios:
        return "-"
    if len(ratios) == 1:
        return percent(ratios[0])
    low, high = (f"{100 * (each - 1):+.1f}" for each in (min(ratios), max(ratios)))
    return f"{percent(median(ratios))} ({low} to {high})"


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def comparison(cells, names, group):
    """One row a cell and server: everything, with the ratios to the group's reference."""
    found = Cells(cells)
    header = ["load", "server", "requests/s", f"ratio to {group.reference}", "CPU us/request", "CPU ratio",
              "switches/request", "p50 us", "p90 us", "p99 us", "foreign CPU %"]
    rows = []
    for cell in names:
        for server in [group.reference] + group.contenders:
            is_reference = server == group.reference

            def values(key):
                return found.values(key, cell, server, group.name)

            if not values("rate"):
                rows.append([cell, server, "**failed**"] + ["-"] * (len(header) - 3))
                continue
            rows.append([
                cell, server, ("**failed in part** " if found.failed(cell, server) else "") + spread(values("rate")),
                "1" if is_reference else spread(values("rate_ratio"), ratio), spread(values("cpu_us")),
                "1" if is_reference else spread(values("cpu_us_ratio"), ratio), spread(values("switches")),
                spread(values("p50_us")), spread(values("p90_us")), spread(values("p99_us")),
                spread(values("foreign_percent"), lambda each: f"{each:.1f}")])
    return markdown(header, rows)


def noise(rows):
    """One line that says how far the run can be trusted."""
    foreign = [row["foreign_percent"] for row in rows]
    loud = sum(1 for each in foreign if each > 5)
    stolen = max((row["stolen_percent"] for row in rows), default=0)
    text = (f"Other processes took {median(foreign):.1f} % of the CPU (median; at most {max(foreign):.1f} %), the "
            f"hypervisor at most {stolen:.1f} %." if foreign else "No turn was finished.")
    if loud:
        text += f" In {loud} of {len(rows)} turns it was more than 5 %: **not a quiet machine**."
    ended = sum(row["threads_ended"] for row in rows)
    if ended:
        text += (f" {ended} server threads ended during a turn: their context switches are missing, and CPU time of "
                 "those turns is counted in ticks.")
    return text
