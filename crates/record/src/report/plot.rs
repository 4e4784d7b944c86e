//! A line plot as SVG: the extremes of every pixel column, so that 10,000 steps weigh no more than 600.

use std::fmt::Write;

/// Width and height of the drawing, in its own units.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 220.0;
/// Room for the labels of the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;
/// Pixel columns that points are gathered in.
const BUCKETS: usize = 560;
/// Labels an axis has, about.
const TICKS: usize = 5;

/// One line of a plot.
pub(crate) struct Line<'a> {
    /// Its name, for the legend.
    pub(crate) name: &'a str,
    /// Its points, by rising x.
    pub(crate) points: &'a [(f64, f64)],
    /// CSS class, which gives its colour.
    pub(crate) class: &'static str,
    /// Whether points are marked: for few of them.
    pub(crate) dots: bool,
}

/// Where numbers lie.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn of(lines: &[Line<'_>]) -> Option<Frame> {
        let points = lines.iter().flat_map(|line| line.points);
        let finite = points.filter(|(x, y)| x.is_finite() && y.is_finite());
        let mut frame: Option<Frame> = None;
        for &(x, y) in finite {
            let f = frame.get_or_insert(Frame { x: (x, x), y: (y, y) });
            f.x = (f.x.0.min(x), f.x.1.max(x));
            f.y = (f.y.0.min(y), f.y.1.max(y));
        }
        let mut frame = frame?;
        frame.x = widened(frame.x, 0.0);
        frame.y = widened(frame.y, 0.04);
        Some(frame)
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let part = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low);
        (
            LEFT + part(x, self.x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - part(y, self.y) * (HEIGHT - TOP - BOTTOM),
        )
    }
}

/// A range that has a width, and some room on both sides.
fn widened((low, high): (f64, f64), room: f64) -> (f64, f64) {
    let width = high - low;
    if width > 0.0 {
        (low - room * width, high + room * width)
    } else {
        let around = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
        (low - around, high + around)
    }
}

/// The plot; nothing where there are no points.
pub(crate) fn plot(lines: &[Line<'_>]) -> Option<String> {
    let frame = Frame::of(lines)?;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    axes(&mut svg, &frame);
    for line in lines {
        let mut path = String::new();
        for (i, point) in thinned(line.points, frame.x).into_iter().enumerate() {
            let (x, y) = frame.place(point);
            let command = if i == 0 { 'M' } else { 'L' };
            put(&mut path, format_args!("{command}{x:.1} {y:.1}"));
        }
        put(&mut svg, format_args!("<path class=\"line {}\" d=\"{path}\"/>", line.class));
        if line.dots {
            for &point in line.points {
                let (x, y) = frame.place(point);
                let class = line.class;
                put(
                    &mut svg,
                    format_args!(
                        "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
                    ),
                );
            }
        }
    }
    svg.push_str("</svg>");
    if lines.len() > 1 {
        svg.push_str("<p class=\"legend\">");
        for line in lines {
            put(&mut svg, format_args!("<span class=\"{}\">{}</span> ", line.class, line.name));
        }
        svg.push_str("</p>");
    }
    Some(svg)
}

fn axes(svg: &mut String, frame: &Frame) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for value in ticks(frame.y) {
        let (_, y) = frame.place((frame.x.0, value));
        let (label, at) = (number(value), y + 4.0);
        put(
            svg,
            format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"y\" x=\"{}\" y=\"{at:.1}\">{label}</text>",
                LEFT - 8.0
            ),
        );
    }
    for value in ticks(frame.x).into_iter().filter(|value| value.fract() == 0.0) {
        let (x, _) = frame.place((value, frame.y.0));
        let (label, at) = (number(value), bottom + 18.0);
        put(svg, format_args!("<text class=\"x\" x=\"{x:.1}\" y=\"{at:.1}\">{label}</text>"));
    }
    put(svg, format_args!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>"));
}

/// Round numbers in a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / TICKS as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    (first..=first + 2 * TICKS as i64).map(|i| i as f64 * step).take_while(|v| *v <= high).collect()
}

/// A label of an axis.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".into()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.1e}")
    } else {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// The points to draw: all of few; of many, the first, lowest, highest and last of every pixel column, in order.
fn thinned(points: &[(f64, f64)], (low, high): (f64, f64)) -> Vec<(f64, f64)> {
    let finite = points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
    if points.len() <= 2 * BUCKETS {
        return finite.collect();
    }
    let bucket = |x: f64| ((x - low) / (high - low) * BUCKETS as f64) as usize;
    let mut kept = Vec::with_capacity(4 * BUCKETS);
    let mut open: Option<(usize, Vec<(f64, f64)>)> = None;
    for point in finite {
        let at = bucket(point.0);
        match &mut open {
            Some((bucket, gathered)) if *bucket == at => gathered.push(point),
            _ => {
                if let Some((_, gathered)) = open.replace((at, vec![point])) {
                    extremes(&gathered, &mut kept);
                }
            }
        }
    }
    if let Some((_, gathered)) = open {
        extremes(&gathered, &mut kept);
    }
    kept
}

fn extremes(points: &[(f64, f64)], kept: &mut Vec<(f64, f64)>) {
    let by_value = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
    let values = || points.iter().map(|point| point.1).enumerate();
    let (Some(lowest), Some(highest)) = (values().min_by(by_value), values().max_by(by_value))
    else {
        return;
    };
    let mut indices = vec![0, lowest.0, highest.0, points.len() - 1];
    indices.sort_unstable();
    indices.dedup();
    kept.extend(indices.into_iter().map(|index| points[index]));
}

fn put(text: &mut String, words: std::fmt::Arguments<'_>) {
    text.write_fmt(words).expect("a string can be written to");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_points_are_thinned_and_their_extremes_stay() {
        let mut points: Vec<(f64, f64)> =
            (0..10_000).map(|i| (i as f64, (i as f64 / 900.0).sin())).collect();
        points[1234].1 = 50.0;
        points[8765].1 = -50.0;
        let kept = thinned(&points, (0.0, 9999.0));
        assert!(kept.len() <= 4 * (BUCKETS + 1) && kept.len() < 3000, "{}", kept.len());
        assert!(kept.contains(&(1234.0, 50.0)) && kept.contains(&(8765.0, -50.0)));
        assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(thinned(&points[..1120], (0.0, 1119.0)).len(), 1120);
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let points = [(1.0, 2.0), (2.0, f64::NAN), (3.0, f64::INFINITY), (4.0, 3.0)];
        assert_eq!(thinned(&points, (1.0, 4.0)), [(1.0, 2.0), (4.0, 3.0)]);
        let line = |points| Line { name: "a", points, class: "a", dots: false };
        assert!(plot(&[line(&points)]).is_some_and(|svg| !svg.contains("NaN")));
        assert!(plot(&[line(&points[1..3])]).is_none());
        assert!(plot(&[]).is_none());
    }

    #[test]
    fn a_range_without_width_can_be_drawn() {
        for value in [0.0, 5.0, -1e-9] {
            let points = [(3.0, value)];
            let line = Line { name: "a", points: &points, class: "a", dots: true };
            let svg = plot(&[line]).unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks((0.0, 10.0)), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks((0.12, 0.48)).first().map(|v| number(*v)), Some("0.2".into()));
        for range in [(1e-9, 3e-9), (-5.0, 1e7), (2.0, 2.1)] {
            let found = ticks(range);
            assert!((2..=2 * TICKS + 1).contains(&found.len()), "{range:?} {found:?}");
            assert!(found.iter().all(|v| (range.0..=range.1).contains(v)), "{range:?} {found:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.5, "1.5"),
            (2000.0, "2000"),
            (2e-4, "2.0e-4"),
            (0.0012, "0.0012"),
            (3e7, "3.0e7"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
