//! SVG charts: lines over time or another quantity, and bars.

mod bars;

pub use bars::{Bars, Series};

use crate::error::{LabError, Result};
use plotters::{
    coord::Shift,
    prelude::*,
    series::DashedLineSeries,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{fmt::Display, ops::Range, path::Path};

/// One line chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title of the chart.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub across: String,
    /// Label of the vertical axis, with its unit.
    pub unit: String,
    /// Curves in the order of the legend.
    pub lines: Vec<Line>,
    /// Horizontal dashed lines: value and name.
    pub levels: Vec<(f64, String)>,
    /// Vertical dashed lines: time in seconds and name of the event.
    pub events: Vec<(f64, String)>,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Index of the colour in the palette; the same item has the same colour in every chart.
    pub colour: usize,
    /// Points: x and value.
    pub points: Vec<(f64, f64)>,
    /// True if every point is marked, as for single measurements.
    pub marked: bool,
}

impl Default for Chart {
    /// Returns an empty chart over time.
    fn default() -> Self {
        let (title, unit, across) = (String::new(), String::new(), "time, s".into());
        Self { title, across, unit, lines: Vec::new(), levels: Vec::new(), events: Vec::new() }
    }
}

/// Draws charts one below another into one SVG file.
pub fn draw(file: &Path, charts: &[Chart]) -> Result<()> {
    let failed = |error: &dyn Display| LabError::Failed {
        command: format!("draw {}", file.display()),
        message: error.to_string(),
    };
    let mut text = String::new();
    draw_stacked(&mut text, charts).map_err(|error| failed(&error))?;
    std::fs::write(file, text).map_err(|error| failed(&error))
}

/// Returns one chart as SVG.
pub fn svg(chart: &Chart) -> Result<String> {
    let mut text = String::new();
    match draw_stacked(&mut text, std::slice::from_ref(chart)) {
        Ok(()) => Ok(text),
        Err(error) => Err(LabError::Failed { command: "draw a chart".into(), message: error.to_string() }),
    }
}

fn draw_stacked(text: &mut String, charts: &[Chart]) -> Drawn {
    let area = SVGBackend::with_string(text, (WIDTH, HEIGHT * charts.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart.draw(part)?;
    }
    Ok(area.present()?)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

impl Chart {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (plot, legend) = area.split_horizontally(WIDTH - LEGEND);
        self.plot(&plot)?;
        self.legend(&legend)
    }

    fn plot(&self, area: &Area<'_>) -> Drawn {
        let (time, values) = (self.width(), 0.0..self.highest() * HEADROOM);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(time.clone(), values.clone())?;
        chart
            .configure_mesh()
            .x_desc(&self.across)
            .y_desc(&self.unit)
            .axis_desc_style((FONT, 15))
            .label_style((FONT, 14))
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .x_labels(MAX_X_LABELS)
            .x_label_formatter(&|time| short(*time))
            .y_label_formatter(&|value| short(*value))
            .draw()?;
        for (line, colour) in self.coloured() {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
            let marks = line.points.iter().filter(|_| line.marked).map(|point| Circle::new(*point, 3, colour.filled()));
            chart.draw_series(marks)?;
        }
        for (value, _) in &self.levels {
            chart.draw_series(dashed([(time.start, *value), (time.end, *value)]))?;
        }
        for (at, name) in &self.events {
            chart.draw_series(dashed([(*at, values.start), (*at, values.end)]))?;
            chart.draw_series([note(name, (*at, values.end))])?;
        }
        Ok(())
    }

    /// Draws the legend beside the plot, so that it hides no curve.
    fn legend(&self, area: &Area<'_>) -> Drawn {
        let mut y = HEIGHT as i32 / 4;
        let name = |text: &str, y| Text::new(text.to_string(), (34, y - 8), (FONT, 14));
        for (line, colour) in self.coloured() {
            area.draw(&PathElement::new([(0, y), (26, y)], colour.stroke_width(3)))?;
            area.draw(&name(&line.name, y))?;
            y += LEGEND_LINE;
        }
        for (_, text) in &self.levels {
            for x in [0, 10, 20] {
                area.draw(&PathElement::new([(x, y), (x + 6, y)], BLACK.mix(0.6)))?;
            }
            area.draw(&name(text, y))?;
            y += LEGEND_LINE;
        }
        Ok(())
    }

    fn coloured(&self) -> impl Iterator<Item = (&Line, &RGBColor)> {
        self.lines.iter().map(|line| (line, &COLOURS[line.colour % COLOURS.len()]))
    }

    /// Returns the range of x: from 0, or the first point if that is negative, to the last point.
    fn width(&self) -> Range<f64> {
        let across = || self.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
        let (first, last) = (across().fold(0.0, f64::min), across().fold(f64::MIN, f64::max));
        first..if last > first { last } else { first + 1.0 }
    }

    fn highest(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        values.chain(self.levels.iter().map(|(value, _)| *value)).fold(0.0, f64::max).max(MIN_SCALE)
    }
}

type Point = (f64, f64);

fn dashed(ends: [Point; 2]) -> DashedLineSeries<std::array::IntoIter<Point, 2>, i32> {
    DashedLineSeries::new(ends, 6, 4, BLACK.mix(0.6).into())
}

/// Returns a text to the right of a point and below it.
fn note(text: &str, at: Point) -> Text<'static, Point, String> {
    let style = TextStyle::from((FONT, 14)).pos(Pos::new(HPos::Left, VPos::Top)).color(&BLACK);
    Text::new(text.to_string(), at, style)
}

/// Formats a value with at most two decimals and without trailing zeros.
fn short(value: f64) -> String {
    format!("{}", (value * 100.0).round() / 100.0)
}

/// Size of one chart in pixels.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 400;

/// Width of the legend beside the chart, and height of one line of it.
const LEGEND: u32 = 150;
const LEGEND_LINE: i32 = 24;

/// Maximum number of labels on the time axis.
const MAX_X_LABELS: usize = 14;

/// Minimum upper end of a scale, for charts in which all values are zero.
const MIN_SCALE: f64 = 0.01;

/// Space above the highest value for event names.
const HEADROOM: f64 = 1.15;

const FONT: &str = "sans-serif";

/// Okabe and Ito's palette for colour-blind readers ("Color universal design", 2008), without yellow (white
/// background).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(150, 150, 150),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_no_needless_digits() {
        assert_eq!([short(0.5), short(2.0), short(0.1 + 0.2), short(100.0)], ["0.5", "2", "0.3", "100"]);
    }

    #[test]
    fn every_line_level_and_event_is_named_in_the_picture() {
        let chart = Chart {
            title: "title".into(),
            unit: "Mbit/s".into(),
            lines: vec![Line { name: "path 1".into(), colour: 0, points: vec![(0.0, 1.0), (1.0, 9.5)], marked: false }],
            levels: vec![(9.6, "ceiling".into())],
            events: vec![(0.5, "pulled".into())],
            ..Chart::default()
        };
        let file = std::env::temp_dir().join(format!("mpt-lab-chart-{}.svg", std::process::id()));
        draw(&file, &[chart]).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for name in ["title", "Mbit/s", "time, s", "path 1", "ceiling", "pulled"] {
            assert!(svg.contains(name), "{name} is missing");
        }
    }
}
