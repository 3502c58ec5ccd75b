//! Charts of something over time, as SVG.

use crate::error::{LabError, Result};
use plotters::{
    coord::Shift,
    prelude::*,
    series::DashedLineSeries,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{fmt::Display, path::Path};

/// One chart: lines over time, with marks.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What the vertical axis counts, with its unit.
    pub unit: String,
    /// The curves, in the order of the legend.
    pub lines: Vec<Line>,
    /// Horizontal dashed lines: a value and its name.
    pub levels: Vec<(f64, String)>,
    /// Vertical dashed lines: a time in seconds and what happened then.
    pub events: Vec<(f64, String)>,
}

/// One curve.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Seconds, and values.
    pub points: Vec<(f64, f64)>,
}

/// Draws charts below each other into one SVG file.
pub fn draw(file: &Path, charts: &[Chart]) -> Result<()> {
    let failed = |error: &dyn Display| LabError::Failed {
        command: format!("draw {}", file.display()),
        message: error.to_string(),
    };
    let area = SVGBackend::new(file, (WIDTH, HEIGHT * charts.len() as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart.draw(part).map_err(|error| failed(&error))?;
    }
    area.present().map_err(|error| failed(&error))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

impl Chart {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let (time, values) = (0.0..self.last_time(), 0.0..self.highest() * HEADROOM);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(time.clone(), values.clone())?;
        chart
            .configure_mesh()
            .x_desc("time, s")
            .y_desc(&self.unit)
            .axis_desc_style((FONT, 15))
            .label_style((FONT, 14))
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .x_label_formatter(&|time| format!("{time:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            chart
                .draw_series(series)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        }
        for (value, name) in &self.levels {
            chart.draw_series(dashed([(time.start, *value), (time.end, *value)]))?;
            chart.draw_series([note(name, (time.end, *value), HPos::Right, VPos::Bottom)])?;
        }
        for (at, name) in &self.events {
            chart.draw_series(dashed([(*at, values.start), (*at, values.end)]))?;
            chart.draw_series([note(name, (*at, values.end), HPos::Left, VPos::Top)])?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .label_font((FONT, 14))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .margin(8)
            .draw()?;
        Ok(())
    }

    fn last_time(&self) -> f64 {
        let ends = self.lines.iter().filter_map(|line| line.points.last()).map(|(time, _)| *time);
        ends.fold(1.0, f64::max)
    }

    fn highest(&self) -> f64 {
        let values = self.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        values.chain(self.levels.iter().map(|(value, _)| *value)).fold(1.0, f64::max)
    }
}

type Point = (f64, f64);

fn dashed(ends: [Point; 2]) -> DashedLineSeries<std::array::IntoIter<Point, 2>, i32> {
    DashedLineSeries::new(ends, 6, 4, BLACK.mix(0.6).into())
}

fn note(text: &str, at: Point, horizontal: HPos, vertical: VPos) -> Text<'static, Point, String> {
    let style = TextStyle::from((FONT, 14)).pos(Pos::new(horizontal, vertical)).color(&BLACK);
    Text::new(text.to_string(), at, style)
}

/// Of one chart, in pixels.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 400;

/// Room above the highest value, for notes.
const HEADROOM: f64 = 1.15;

const FONT: &str = "sans-serif";

/// Okabe and Ito's colours, told apart by nearly everybody ("Color universal design", 2008); yellow is left out on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
