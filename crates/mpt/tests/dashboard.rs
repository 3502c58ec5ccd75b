//! The Grafana dashboard against the metrics: Grafana shows "No data" for a misspelt name, not an error.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::Path,
    process::Command,
};

/// Labels by metric.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// A query of the dashboard.
struct Query {
    /// The panel or the variable.
    place: String,
    expression: String,
    legend: String,
}

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dashboard() -> Value {
    serde_json::from_str(&file("packaging/grafana/mpt.json")).expect("JSON")
}

/// Returns the labels of each metric of the committed text; `instance` is from Prometheus.
fn metrics() -> Metrics {
    let mut metrics = Metrics::new();
    for line in file("crates/mpt/src/web/metrics.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').expect("a metric with labels");
        let (labels, _) = rest.rsplit_once('}').expect("the end of the labels");
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name.to_owned());
        metrics.entry(name.to_owned()).or_default().extend(labels.chain(["instance".to_owned()]));
    }
    metrics
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the panels, those in collapsed rows too.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let top = dashboard["panels"].as_array().expect("panels");
    top.iter().flat_map(|panel| [panel].into_iter().chain(panel["panels"].as_array().into_iter().flatten())).collect()
}

fn queries(dashboard: &Value) -> Vec<Query> {
    let query = |panel: &Value, target: &Value| Query {
        place: text(&panel["title"]).to_owned(),
        expression: text(&target["expr"]).to_owned(),
        legend: text(&target["legendFormat"]).to_owned(),
    };
    let of = |panel: &Value| -> Vec<Query> {
        panel["targets"].as_array().into_iter().flatten().map(|target| query(panel, target)).collect()
    };
    panels(dashboard).into_iter().flat_map(of).collect()
}

/// Returns the variables that have a query: name, selector, label.
fn variables(dashboard: &Value) -> Vec<(String, String, String)> {
    let list = dashboard["templating"]["list"].as_array().expect("variables").iter();
    list.filter(|variable| variable["type"] == "query")
        .map(|variable| {
            let query = text(&variable["query"]["query"]);
            assert_eq!(query, text(&variable["definition"]));
            let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (selector, label) = inside.and_then(|inside| inside.rsplit_once(", ")).expect(query);
            (text(&variable["name"]).to_owned(), selector.to_owned(), label.to_owned())
        })
        .collect()
}

/// Replaces Grafana's variables by values.
fn filled(expression: &str, variables: &[String]) -> String {
    let mut filled = expression.replace("$__rate_interval", "5m");
    for name in variables {
        filled = filled.replace(&format!("\"${name}\""), "\".*\"");
    }
    assert!(!filled.contains('$'), "an unknown variable: {filled}");
    filled
}

/// Returns the metrics of an expression, each with the matchers in its braces.
fn selectors(expression: &str) -> Vec<(&str, &str)> {
    let starts = expression.match_indices("mpt_").map(|(at, _)| &expression[at..]);
    starts
        .map(|rest| {
            let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
            let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
            let matchers =
                rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
            (name, matchers)
        })
        .collect()
}

/// Returns the labels and values of matchers.
fn matchers(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\",").filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (label, value) = part.split_once('"').expect("a quoted value");
            (label.trim_end_matches(['=', '!', '~']), value.trim_end_matches('"'))
        })
        .collect()
}

/// Returns the labels in the parentheses after a keyword.
fn listed<'a>(expression: &'a str, keyword: &'a str) -> impl Iterator<Item = &'a str> {
    let lists = expression.split(keyword).skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(list, _)| list.split(',').map(str::trim)).filter(|label| !label.is_empty())
}

/// Returns the labels that the result of a query has: those of the outermost aggregation, or of its first metric.
fn labels_of_result(expression: &str, metrics: &Metrics) -> BTreeSet<String> {
    match expression.strip_prefix("sum by (") {
        Some(_) => listed(expression, " by (").map(str::to_owned).collect(),
        None => selectors(expression).first().and_then(|(name, _)| metrics.get(*name)).cloned().unwrap_or_default(),
    }
}

#[test]
fn each_metric_and_label_of_the_dashboard_exists() {
    let (dashboard, metrics) = (dashboard(), metrics());
    let queries = queries(&dashboard);
    assert!(queries.len() > 20, "{} queries", queries.len());
    for Query { place, expression, legend } in &queries {
        let mut known = BTreeSet::new();
        for (name, inside) in selectors(expression) {
            let labels = metrics.get(name).unwrap_or_else(|| panic!("{place}: no metric {name}"));
            for (label, _) in matchers(inside) {
                assert!(labels.contains(label), "{place}: {name} has no label {label}");
            }
            known.extend(labels.clone());
        }
        for keyword in [" by (", " on (", " group_left ("] {
            for label in listed(expression, keyword) {
                assert!(known.contains(label), "{place}: no label {label} in {expression}");
            }
        }
        let result = labels_of_result(expression, &metrics);
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")) {
            assert!(result.contains(label.0), "{place}: no label {} in the result of {expression}", label.0);
        }
    }
    for (name, selector, label) in variables(&dashboard) {
        let (metric, inside) = selectors(&selector)[0];
        let labels = metrics.get(metric).unwrap_or_else(|| panic!("{name}: no metric {metric}"));
        for label in matchers(inside).iter().map(|(label, _)| *label).chain([label.as_str()]) {
            assert!(labels.contains(label), "{name}: {metric} has no label {label}");
        }
    }
}

#[test]
fn the_reasons_of_the_dashboard_are_those_of_the_guide() {
    let guide = file("docs/guide/status.md");
    let mut reasons = BTreeSet::new();
    for query in queries(&dashboard()) {
        for (_, inside) in selectors(&query.expression) {
            let own = matchers(inside).into_iter().filter(|(label, _)| *label == "reason");
            reasons.extend(own.flat_map(|(_, value)| value.split('|')).map(str::to_owned).collect::<Vec<_>>());
        }
    }
    assert!(reasons.len() > 5, "{reasons:?}");
    for reason in reasons {
        assert!(guide.contains(&format!("\n| `{reason}` |")), "{reason}");
    }
}

#[test]
fn panels_have_their_own_numbers_and_places() {
    let dashboard = dashboard();
    let panels = panels(&dashboard);
    let numbers: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().expect("a number")).collect();
    assert_eq!(numbers.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in &panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
        assert!(x + w <= 24, "{}", panel["title"]);
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} covers another panel", panel["title"]);
        }
        let sources = panel["targets"].as_array().into_iter().flatten().chain([*panel]);
        for source in sources.filter(|source| source["type"] != "row") {
            assert_eq!(source["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
}

/// Each query becomes a recording rule, because promtool parses rules.
#[test]
fn promtool_parses_each_query_of_the_dashboard() {
    let dashboard = dashboard();
    let names: Vec<String> = variables(&dashboard).into_iter().map(|(name, _, _)| name).collect();
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    let selectors = variables(&dashboard).into_iter().map(|(_, selector, _)| selector);
    let expressions = queries(&dashboard).into_iter().map(|query| query.expression).chain(selectors);
    let mut count = 0;
    for (number, expression) in expressions.enumerate() {
        let expression = Value::String(filled(&expression, &names));
        write!(rules, "      - record: dashboard:query{number}\n        expr: {expression}\n")
            .expect("a string takes it");
        count += 1;
    }
    let folder = tempfile::TempDir::new().expect("a folder");
    let rules_file = folder.path().join("rules.yml");
    fs::write(&rules_file, rules).expect("a file");
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(&rules_file).output() else {
        // Written directly, because the test harness captures the output of passing tests.
        return writeln!(io::stderr(), "skipped: needs promtool, of the package prometheus").expect("stderr takes it");
    };
    let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && shown.contains(&format!("{count} rules found")), "{shown}");
}
