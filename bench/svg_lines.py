"""Line plots as SVG text, panels beside one another, that any browser shows without a network."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 330, 250, 52, 44, 40
COLOURS = ["#0b6e4f", "#b5482a", "#34568b", "#8a6d1b"]


def ticks(top):
    """Five round values at most, from 0 up to `top`."""
    power = 10 ** math.floor(math.log10(top / 5)) if top > 0 else 1
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if top / (power * factor) < 5)
    return [i * step for i in range(int(top / step) + 1)]


def panel(x, title, x_label, y_label, series):
    """One panel at offset `x`; its x axis has the measured places at even distances, its y axis begins at 0."""
    places = sorted({point[0] for _, points in series for point in points})
    top = max((point[1] for _, points in series for point in points), default=1) * 1.1
    inner_width, inner_height = WIDTH - LEFT - 14, HEIGHT - TOP - BOTTOM

    def at(place, value):
        step = inner_width / max(len(places) - 1, 1)
        return x + LEFT + places.index(place) * step, TOP + inner_height * (1 - value / top)

    out = [f'<text x="{x + LEFT}" y="{TOP - 12}" font-weight="bold">{escape(title)}</text>',
           f'<text x="{x + LEFT + inner_width / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>',
           f'<text x="{x + LEFT - 6}" y="{TOP - 12}" text-anchor="end">{escape(y_label)}</text>']
    for value in ticks(top):
        y = TOP + inner_height * (1 - value / top)
        out.append(f'<path d="M{x + LEFT} {y:.1f}h{inner_width}" stroke="#ddd"/>'
                   f'<text x="{x + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for place in places:
        out.append(f'<text x="{at(place, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{place}</text>')
    for colour, (name, points) in zip(COLOURS, series):
        if not points:
            continue
        spots = [at(*point) for point in points]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                   + " ".join(f"{px:.1f},{py:.1f}" for px, py in spots) + '"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"><title>{escape(name)}: {point[1]:.0f}</title></circle>'
                for (px, py), point in zip(spots, points)]
        out.append(f'<text x="{spots[-1][0]:.1f}" y="{spots[-1][1] - 8:.1f}" text-anchor="end" fill="{colour}">{escape(name)}</text>')
    return "\n".join(out)


def plot(panels, title):
    """panels: (title, x label, y label, [(name, [(x, y), ...]), ...])."""
    width = WIDTH * len(panels)
    body = "\n".join(panel(i * WIDTH, *each) for i, each in enumerate(panels))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
            f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="8" y="14">{escape(title)}</text>\n{body}\n</svg>\n')
