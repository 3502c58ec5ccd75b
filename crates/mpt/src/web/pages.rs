//! The answers: the page, its data, health, metrics.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::history::{Curves, MAX_PATHS};
use super::metrics;
use super::request::{HttpError, HttpRequest};
use super::samples::{Samples, Tunnel};
use crate::control::Event;
use crate::control::report::{PathReport, PeerReport, Report};
use crate::control::verdict::{has_trouble, share, state, verdict};

/// An answer.
#[derive(Debug)]
pub struct HttpResponse {
    status: &'static str,
    kind: &'static str,
    /// Further fields, each with its line end.
    fields: &'static str,
    body: Vec<u8>,
}

/// Answers a request.
pub fn answer(request: &HttpRequest, samples: &Samples) -> HttpResponse {
    match request.path.as_str() {
        "/" => HttpResponse::of(HTML, include_bytes!("page/index.html")),
        "/page.js" => HttpResponse::of(SCRIPT, include_bytes!("page/page.js")),
        "/page.css" => HttpResponse::of(STYLE, include_bytes!("page/page.css")),
        "/uplot.js" => HttpResponse::of(SCRIPT, include_bytes!("page/uPlot.iife.min.js")),
        "/uplot.css" => HttpResponse::of(STYLE, include_bytes!("page/uPlot.min.css")),
        "/api/now" => HttpResponse::json(&now(samples)),
        "/api/history" => match history(request, samples) {
            Some(curves) => HttpResponse::json(&curves),
            None => HttpResponse::not_found("this path has no history: it does not exist, or too many others do\n"),
        },
        "/metrics" => {
            let reports: Vec<_> =
                samples.lock().iter().map(|(name, tunnel)| (name.clone(), tunnel.report.clone().ok())).collect();
            HttpResponse::of(METRICS, metrics::text(&reports).as_bytes())
        }
        "/healthz" => health(samples),
        _ => HttpResponse::not_found("there are /, /metrics and /healthz\n"),
    }
}

/// The state of all tunnels for the page.
#[derive(Debug, Serialize)]
struct Now {
    /// Seconds since 1970 of this host, to which the curves refer.
    time: u64,
    tunnels: Vec<TunnelNow>,
}

#[derive(Debug, Serialize)]
struct TunnelNow {
    name: String,
    /// The reason why there is no report.
    trouble: Option<String>,
    mode: String,
    version: String,
    uptime_s: u64,
    mtu_bytes: usize,
    peers: Vec<PeerNow>,
    /// Number of peers that are left out.
    more: usize,
    /// The last events, the newest first.
    events: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct PeerNow {
    name: String,
    scheduler: String,
    session_age_s: Option<u64>,
    no_path: Option<String>,
    paths: Vec<PathNow>,
}

#[derive(Debug, Serialize)]
struct PathNow {
    state: String,
    verdict: String,
    /// Loses much, or has a long queue.
    has_trouble: bool,
    share: Option<f64>,
    #[serde(flatten)]
    report: PathReport,
}

fn now(samples: &Samples) -> Now {
    let of = |(name, tunnel): (&String, &Tunnel)| {
        let none = Report::default();
        let report = tunnel.report.as_deref().unwrap_or(&none);
        let about = &report.tunnel;
        TunnelNow {
            name: name.clone(),
            trouble: tunnel.report.as_ref().err().cloned(),
            mode: about.mode.clone(),
            version: about.version.clone(),
            uptime_s: about.uptime_s,
            mtu_bytes: about.mtu_bytes,
            peers: report.peers.iter().take(MAX_PEERS).map(peer).collect(),
            more: report.peers.len().saturating_sub(MAX_PEERS),
            events: tunnel.events.iter().rev().cloned().collect(),
        }
    };
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Now { time, tunnels: samples.lock().iter().map(of).collect() }
}

fn peer(peer: &PeerReport) -> PeerNow {
    let path = |path: &PathReport| PathNow {
        state: state(path).to_owned(),
        verdict: verdict(peer, path),
        has_trouble: has_trouble(peer, path),
        share: share(peer, path),
        report: path.clone(),
    };
    PeerNow {
        name: peer.name.clone(),
        scheduler: peer.scheduler.clone(),
        session_age_s: peer.session_age_s,
        no_path: peer.no_path.clone(),
        paths: peer.paths.iter().map(path).collect(),
    }
}

fn history(request: &HttpRequest, samples: &Samples) -> Option<Curves> {
    let is_day = request.value("span") == Some("day");
    samples.lock().get(request.value("tunnel")?)?.history.curves(request.value("peer")?, request.value("path")?, is_day)
}

/// 200 if every tunnel responds, has a path to each peer that it calls, and one that is up if it has any path.
fn health(samples: &Samples) -> HttpResponse {
    let (mut text, mut is_well) = (String::new(), true);
    let tunnels = samples.lock();
    for (name, tunnel) in tunnels.iter() {
        let line = match &tunnel.report {
            Err(why) => Err(why.clone()),
            Ok(report) => {
                let (up, all) = (report.paths().filter(|(_, path)| path.up).count(), report.paths().count());
                let without = report.peers.iter().find_map(|peer| Some((&peer.name, peer.missing_path()?)));
                if let Some((peer, reason)) = without {
                    Err(format!("no path to {peer}: {reason}; {up} of {all} paths are up"))
                } else if up > 0 || all == 0 {
                    Ok(format!("{up} of {all} paths are up"))
                } else {
                    Err(format!("0 of {all} paths are up"))
                }
            }
        };
        is_well &= line.is_ok();
        text += &line.map_or_else(|line| format!("{name} fail: {line}\n"), |line| format!("{name} ok: {line}\n"));
    }
    if tunnels.is_empty() {
        (text, is_well) = ("fail: no tunnel is running\n".to_owned(), false);
    }
    HttpResponse {
        status: if is_well { "200 OK" } else { "503 Service Unavailable" },
        ..HttpResponse::of(TEXT, text.as_bytes())
    }
}

impl HttpResponse {
    fn of(kind: &'static str, body: &[u8]) -> Self {
        Self { status: "200 OK", kind, fields: "", body: body.to_vec() }
    }

    fn json(value: &impl Serialize) -> Self {
        Self::of(JSON, &serde_json::to_vec(value).expect("names and numbers can be written as JSON"))
    }

    fn not_found(text: &str) -> Self {
        Self { status: "404 Not Found", ..Self::of(TEXT, text.as_bytes()) }
    }

    /// Returns the answer as it is sent.
    pub fn into_bytes(self) -> Vec<u8> {
        let Self { status, kind, fields, body } = self;
        let len = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{FIELDS}{fields}\r\n");
        [head.as_bytes(), &body].concat()
    }
}

impl From<HttpError> for HttpResponse {
    fn from(refusal: HttpError) -> Self {
        let (status, text) = match refusal {
            HttpError::Malformed => ("400 Bad Request", "this is no request of HTTP/1 with one Host\n"),
            HttpError::Method => ("405 Method Not Allowed", "only GET is answered\n"),
            HttpError::TooLong => {
                ("431 Request Header Fields Too Large", "the head has more than 4096 bytes or 64 fields\n")
            }
            HttpError::TooSlow => ("408 Request Timeout", "the request took more than 5 s\n"),
            HttpError::Host => ("421 Misdirected Request", "use an address or localhost in place of a name\n"),
            HttpError::Origin => ("403 Forbidden", "a page of another origin made this request\n"),
            HttpError::Token => {
                ("401 Unauthorized", "the token of --token-file is the password; the user does not matter\n")
            }
        };
        let fields = match refusal {
            HttpError::Method => "Allow: GET\r\n",
            HttpError::Token => "WWW-Authenticate: Basic realm=\"mpt\", charset=\"UTF-8\"\r\n",
            _ => "",
        };
        Self { status, fields, ..Self::of(TEXT, text.as_bytes()) }
    }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// The version of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Fields of every answer. The page runs no script but its own, and no site may frame it.
const FIELDS: &str = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
    Content-Security-Policy: default-src 'self'; img-src data:; frame-ancestors 'none'; \
    base-uri 'none'; form-action 'none'\r\n";
/// Peers on the page. With four paths each they have all a history.
const MAX_PEERS: usize = MAX_PATHS / 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(target: &str, samples: &Samples) -> String {
        String::from_utf8_lossy(&answer(&HttpRequest::new(target), samples).into_bytes()).into_owned()
    }

    fn with(report: Result<Report, String>) -> Samples {
        let samples = Samples::default();
        let mut tunnel = Tunnel { report: Err(String::new()), history: Default::default(), events: Default::default() };
        if let Ok(report) = &report {
            tunnel.history.add(0, report);
        }
        tunnel.report = report.map(Into::into);
        samples.lock().insert("mpt0".to_owned(), tunnel);
        samples
    }

    fn report(up: bool) -> Report {
        let path = PathReport { name: "d/s l".to_owned(), up, ..PathReport::default() };
        let peer = |at| PeerReport { name: format!("p{at}"), paths: vec![path.clone()], ..PeerReport::default() };
        Report { peers: (0..100).map(peer).collect(), ..Report::default() }
    }

    #[test]
    fn health_is_bad_without_a_tunnel_an_answer_or_a_path() {
        let status = |samples: &Samples| text("/healthz", samples)[9..12].to_owned();
        assert_eq!(status(&with(Ok(report(true)))), "200");
        assert_eq!(status(&with(Ok(Report::default()))), "200", "nobody has called yet");
        assert_eq!(status(&with(Ok(report(false)))), "503");
        let without = |usage: Option<&str>| {
            let server = usage.map(str::to_owned);
            let peer = PeerReport { no_path: Some("no route".to_owned()), server, ..PeerReport::default() };
            Report { peers: vec![peer], ..Report::default() }
        };
        assert_eq!(status(&with(Ok(without(None)))), "503", "this host calls the peer");
        assert_eq!([Some("active"), Some("idle")].map(|usage| status(&with(Ok(without(usage))))), ["503", "200"]);
        assert_eq!(status(&with(Err("gone".to_owned()))), "503");
        assert_eq!(status(&Samples::default()), "503");
        assert!(text("/healthz", &with(Err("gone".to_owned()))).ends_with("\r\n\r\nmpt0 fail: gone\n"));
    }

    #[test]
    fn the_data_is_bounded_and_a_path_is_found_by_its_names() {
        let samples = with(Ok(report(true)));
        let data = text("/api/now", &samples);
        assert_eq!(data.matches("\"verdict\":").count(), MAX_PEERS);
        assert!(data.contains("\"more\":36"), "{data}");
        let found = text("/api/history?tunnel=mpt0&peer=p7&path=d%2Fs%20l", &samples);
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n") && found.contains("\"t\":[0]"), "{found}");
        for wrong in ["", "?tunnel=mpt0&peer=p7&path=x", "?tunnel=x&peer=p7&path=d%2Fs%20l", "?tunnel=mpt0"] {
            assert!(text(&format!("/api/history{wrong}"), &samples).starts_with("HTTP/1.1 404 "), "{wrong}");
        }
        assert!(text("/../etc/passwd", &samples).starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn the_whole_page_is_smaller_than_100_kb_and_loads_nothing_else() {
        let samples = Samples::default();
        let all: Vec<_> =
            ["/", "/page.js", "/page.css", "/uplot.js", "/uplot.css"].map(|path| text(path, &samples)).into();
        let bytes: usize = all.iter().map(String::len).sum();
        assert!(bytes < 100_000, "{bytes}");
        for own in &all[..3] {
            assert!(!own.contains("http://") && !own.contains("https://") && !own.contains("innerHTML"), "{own}");
        }
        assert!(all[0].contains("Content-Security-Policy: default-src 'self';"));
    }

    #[test]
    fn a_refusal_has_its_status_and_a_reason() {
        let text = String::from_utf8(HttpResponse::from(HttpError::Token).into_bytes()).unwrap();
        assert!(text.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{text}");
        assert!(
            text.contains("\r\nWWW-Authenticate: Basic realm=\"mpt\", charset=\"UTF-8\"\r\n\r\nthe token"),
            "{text}"
        );
    }
}
