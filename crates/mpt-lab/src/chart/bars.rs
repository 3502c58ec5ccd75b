//! Grouped bar charts with the same legend as line charts.

use super::{Area, COLOURS, Drawn, FONT, HEIGHT, LEGEND, LEGEND_LINE, WIDTH, dashed, short};
use crate::error::{LabError, Result};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// A bar chart: each group has one bar per series.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title of the chart.
    pub title: String,
    /// Label of the horizontal axis, with the unit of the groups.
    pub across: String,
    /// Label of the vertical axis, with its unit.
    pub unit: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Series in the order of the legend.
    pub series: Vec<Series>,
    /// True if the series are steps of one quantity; their colours then form a ramp.
    pub graded: bool,
}

/// One bar in every group.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Index of the colour in the palette.
    pub colour: usize,
    /// One value per group; no bar where the value is missing.
    pub values: Vec<Option<f64>>,
}

impl Bars {
    /// Returns the chart as SVG.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        match self.draw(&mut text) {
            Ok(()) => Ok(text),
            Err(error) => Err(LabError::Failed { command: "draw bars".into(), message: error.to_string() }),
        }
    }

    fn draw(&self, text: &mut String) -> Drawn {
        let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, legend) = area.split_horizontally(WIDTH - LEGEND);
        self.plot(&plot)?;
        self.legend(&legend)?;
        Ok(area.present()?)
    }

    fn plot(&self, area: &Area<'_>) -> Drawn {
        let values = self.series.iter().flat_map(|series| &series.values).flatten();
        let highest = values.fold(0.0, |most: f64, value| most.max(*value)).max(0.01) * 1.08;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(if self.is_crowded() { 90 } else { 44 })
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..self.groups.len() as f64, 0.0..highest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(&self.unit)
            .axis_desc_style((FONT, 15))
            .label_style((FONT, 14))
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .y_label_formatter(&|value| short(*value))
            .draw()?;
        for (number, series) in self.series.iter().enumerate() {
            let bar = |(group, value): (usize, &Option<f64>)| {
                let (left, right) = self.edges(group, number);
                value.map(|value| Rectangle::new([(left, 0.0), (right, value)], self.colour(number).filled()))
            };
            chart.draw_series(series.values.iter().enumerate().filter_map(bar))?;
        }
        chart.draw_series(dashed([(0.0, 0.0), (self.groups.len() as f64, 0.0)]))?;
        let below = |group: usize| chart.backend_coord(&(group as f64 + 0.5, 0.0));
        for (group, name) in self.groups.iter().enumerate() {
            self.name_group(area, name, below(group))?;
        }
        let (width, height) = area.dim_in_pixel();
        let middle = TextStyle::from((FONT, 15)).pos(Pos::new(HPos::Center, VPos::Bottom));
        let place = (width as i32 / 2, height as i32 - 6);
        area.draw(&Text::new(self.across.clone(), place, middle))?;
        Ok(())
    }

    /// Draws a group's name, rotated if the names would overlap.
    fn name_group(&self, area: &Area<'_>, name: &str, (x, y): (i32, i32)) -> Drawn {
        let (left, top) = area.get_pixel_range();
        let (x, y) = (x - left.start, y - top.start);
        let upright = TextStyle::from((FONT, 14));
        let style = match self.is_crowded() {
            true => TextStyle::from((FONT, 13).into_font().transform(FontTransform::Rotate270))
                .pos(Pos::new(HPos::Right, VPos::Center)),
            false => upright.pos(Pos::new(HPos::Center, VPos::Top)),
        };
        area.draw(&Text::new(name.to_owned(), (x, y + 6), style))?;
        Ok(())
    }

    fn is_crowded(&self) -> bool {
        let longest = self.groups.iter().map(|name| name.len()).max().unwrap_or(0);
        longest * self.groups.len() > 90
    }

    fn legend(&self, area: &Area<'_>) -> Drawn {
        let mut y = HEIGHT as i32 / 8;
        for (number, series) in self.series.iter().enumerate() {
            area.draw(&Rectangle::new([(4, y - 6), (20, y + 6)], self.colour(number).filled()))?;
            area.draw(&Text::new(series.name.clone(), (28, y - 8), (FONT, 14)))?;
            y += LEGEND_LINE;
        }
        Ok(())
    }

    /// Returns the left and right edge of a bar. Each group has a margin of a tenth of its width on both sides.
    fn edges(&self, group: usize, series: usize) -> (f64, f64) {
        let width = 0.8 / self.series.len() as f64;
        let left = group as f64 + 0.1 + width * series as f64;
        (left, left + width * 0.94)
    }

    fn colour(&self, number: usize) -> RGBColor {
        if !self.graded {
            return COLOURS[self.series[number].colour % COLOURS.len()];
        }
        let share = number as f64 / (self.series.len() - 1).max(1) as f64;
        let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share) as u8;
        RGBColor(mix(LIGHT.0, DARK.0), mix(LIGHT.1, DARK.1), mix(LIGHT.2, DARK.2))
    }
}

/// Ends of the colour ramp: one hue, so that higher values are also darker in print.
const LIGHT: RGBColor = RGBColor(190, 220, 240);
const DARK: RGBColor = RGBColor(8, 48, 107);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_and_series_is_named_and_missing_values_have_no_bar() {
        let series = |name: &str, values| Series { name: name.into(), colour: 0, values };
        let bars = Bars {
            title: "title".into(),
            across: "speed".into(),
            unit: "Mbit/s".into(),
            groups: vec!["ten".into(), "twenty".into()],
            series: vec![series("weight 10", vec![Some(1.0), None]), series("weight 20", vec![Some(2.0), Some(3.0)])],
            graded: true,
        };
        let svg = bars.svg().unwrap();
        for name in ["title", "speed", "Mbit/s", "ten", "twenty", "weight 10", "weight 20"] {
            assert!(svg.contains(name), "{name} is missing");
        }
        // Three bars, two boxes in the legend, and the background.
        assert_eq!(svg.matches("<rect").count(), 6);
    }
}
