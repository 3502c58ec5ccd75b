//! The tunnel itself: configuration, process, folders, and the handshakes that it refused.

use super::{Finding, Outcome, failed, unless, warning};
use crate::config;
use crate::config::model::Mode;
use crate::control::report::PeerReport;
use crate::doctor::facts::{Config, Control, Facts};

/// The file can be read and has no mistakes; others may not read a file with a key.
pub fn configuration(facts: &Facts) -> Outcome {
    let finding = |problem: &config::Problem| {
        let cure = problem.hint.clone().unwrap_or_else(|| "docs/guide/config.md has all keys".to_owned());
        let line = problem.line.map_or_else(String::new, |line| format!(":{line}"));
        let cause = format!("{}{line}: {}", problem.file.display(), problem.what);
        match problem.severity {
            config::ProblemSeverity::Error => failed(cause, cure),
            config::ProblemSeverity::Warning => warning(cause, cure),
        }
    };
    match &facts.config {
        // A member of the tunnel's group may read the status, and not the file.
        Config::Broken(..) if !facts.is_root => None,
        Config::Broken(_, problems) => Some(problems.iter().map(finding).collect()),
        Config::Read(file) => Some(file.warnings.iter().map(finding).collect()),
        Config::Absent => None,
    }
}

pub fn running(facts: &Facts) -> Outcome {
    let name = &facts.interface;
    // A file with a mistake does not say which interface it is for.
    let is_unknown = matches!(facts.config, Config::Broken(..)) && name.is_empty();
    if is_unknown || (matches!(facts.control, Control::Refused(_)) && !facts.is_root) {
        return None;
    }
    Some(match &facts.control {
        Control::Absent => {
            vec![failed(format!("the tunnel {name} is not running"), "mpt up FILE; its log has the reason if it ends")]
        }
        Control::Blocked => vec![failed(
            format!("the tunnel {name} is not running, and its kill switch keeps this host off the net"),
            format!("mpt up FILE; or mpt down {name} to remove the kill switch"),
        )],
        Control::Refused(failure) => {
            vec![failed(
                failure.what.clone(),
                failure.hint.clone().unwrap_or_else(|| "see the log of the tunnel".to_owned()),
            )]
        }
        Control::Silent | Control::Report(_) => Vec::new(),
    })
}

pub fn responds(facts: &Facts) -> Outcome {
    let is_silent = match &facts.control {
        Control::Silent => true,
        Control::Report(_) => false,
        Control::Absent | Control::Blocked | Control::Refused(_) => return None,
    };
    unless(!is_silent, || {
        failed(
            format!("the tunnel {} runs and does not answer at its control socket", facts.interface),
            "end its process and start it again; under systemd the watchdog does that within 30 s",
        )
    })
}

pub fn version(facts: &Facts) -> Outcome {
    let (running, own) = (&facts.report()?.tunnel.version, env!("CARGO_PKG_VERSION"));
    let cause = match running == own {
        false => format!("the tunnel runs version {running}, and this program is version {own}"),
        true if facts.host.program_replaced => "the program was replaced since the tunnel started".to_owned(),
        true => return Some(Vec::new()),
    };
    Some(vec![warning(cause, format!("restart the tunnel: systemctl restart mpt@{}", facts.interface))])
}

pub fn tun_device(facts: &Facts) -> Outcome {
    // The tunnel of a service manager may use a device that this user may not open.
    if !facts.is_root {
        return None;
    }
    unless(facts.host.tun_problem.is_none(), || {
        let (cause, cure) = facts.host.tun_problem.clone().unwrap_or_default();
        failed(cause, cure)
    })
}

pub fn state_directory(facts: &Facts) -> Outcome {
    facts.report()?;
    let problem = facts.host.state_problem.as_ref();
    unless(problem.is_none(), || {
        let cause = format!("the state directory: {}", problem.map_or("", String::as_str));
        warning(
            cause,
            "free space, or chown it to the user of the tunnel: usage and handshake times are lost at a restart",
        )
    })
}

/// The certificate of `[tls]` is renewed in time, and the present files can be used.
pub fn tls_certificate(facts: &Facts) -> Outcome {
    let certificate = facts.report()?.tunnel.tls_certificate.as_ref()?;
    let expiry = certificate.expiry().map(|expiry| {
        let cause = format!("the certificate for paths over TLS {expiry}");
        warning(cause, "renew it, for example by certbot renew; the tunnel takes the new files without a command")
    });
    let problem = certificate.problem.as_ref().map(|why| {
        let cause = format!("the certificate for paths over TLS is not renewed: {why}");
        warning(cause, "correct certificate and key of [tls]; the tunnel tries again when they change")
    });
    Some(expiry.into_iter().chain(problem).collect())
}

/// A peer that this host calls answers, and the answers cannot be opened. With a wrong `public_key` it does not answer.
pub fn preshared_key(facts: &Facts) -> Outcome {
    let peers = &facts.report()?.peers;
    let finding = |peer: &PeerReport| {
        let count = answers_not_authentic(facts, &peer.name)?;
        let cause = format!("{count} answers arrived and were not authentic, and {} has no session", peer.name);
        let cure = "the preshared keys differ: put the same preshared_key into the [[peer]] at both ends, or into \
                    neither; if they are the same, compare public_key here with mpt key public there";
        Some(failed(cause, cure))
    };
    Some(peers.iter().filter_map(finding).collect())
}

/// Returns the number of answers that were not authentic, if this peer is called and has no session. They are counted
/// for the tunnel, because a datagram that cannot be opened has no certain sender.
pub fn answers_not_authentic(facts: &Facts, peer: &str) -> Option<u64> {
    let report = facts.report()?;
    let own = facts.peer(peer).filter(|own| !own.connects_to_us() && own.protocol.public_key().is_some())?;
    let peer = report.peers.iter().find(|peer| *own.name == peer.name)?;
    let counts = [&report.drops, &peer.drops].map(|drops| drops.get("not_authentic").copied().unwrap_or(0));
    let count: u64 = counts.iter().sum();
    (count > 0 && peer.session_age_s.is_none() && !peer.paths.is_empty()).then_some(count)
}

/// A packet of a peer has a source that this host does not accept from it.
pub fn foreign_source(facts: &Facts) -> Outcome {
    let finding = |peer: &PeerReport| {
        let count = peer.drops.get("foreign_source").copied()?;
        let cause = format!("{count} packets of {} had a source that is not in its networks here", peer.name);
        let cure = "add the address in address there to networks in the [[peer]] here, and each network behind it \
                    whose hosts use the tunnel; no other peer may have it";
        Some(warning(cause, cure))
    };
    Some(facts.report()?.peers.iter().filter_map(finding).collect())
}

pub fn unknown_key(facts: &Facts) -> Outcome {
    refused(facts, "unknown_peer", |count| {
        warning(
            format!("{count} handshakes came from a host whose key is in no [[peer]]"),
            "put its public key into a [[peer]] here: mpt key public prints it there, from its private key",
        )
    })
}

pub fn wrong_key(facts: &Facts) -> Outcome {
    refused(facts, "bad_mac", |count| {
        warning(
            format!("{count} handshakes were made for another public key than that of this host"),
            "correct public_key in the [[peer]] of the other host: mpt key public prints the right one here",
        )
    })
}

pub fn old_handshake(facts: &Facts) -> Outcome {
    refused(facts, "stale_handshake", |count| {
        warning(
            format!("{count} handshakes of a peer were older than its last one"),
            "set the clock of the peer, or give the second host that uses its key a key of its own",
        )
    })
}

fn refused(facts: &Facts, reason: &str, finding: impl FnOnce(u64) -> Finding) -> Outcome {
    if *facts.file()?.mode != Mode::Native {
        return None;
    }
    let count = facts.report()?.drops.get(reason).copied().unwrap_or(0);
    unless(count == 0, || finding(count))
}
