//! Netfilter and forwarding.

use super::{Finding, FindingSeverity, Outcome, failed, unless, warning};
use crate::config::File;
use crate::config::model::Mode;
use crate::daemon::policy_routing;
use crate::doctor::facts::Facts;
use crate::nft;

pub fn kill_switch(facts: &Facts) -> Outcome {
    let file = facts.file().filter(|file| policy_routing::has_kill_switch(file) && facts.is_running())?;
    let name = nft::table_name("mptkill", &file.interface);
    unless(facts.firewall.tables.as_ref()?.contains(&name), || {
        failed(
            format!("the table {name} of nftables is gone: the kill switch is open"),
            "the tunnel restores it within a second; if not, its log has the reason: mpt reload",
        )
    })
}

pub fn masquerade(facts: &Facts) -> Outcome {
    let file = facts.file().filter(|file| file.masquerade && facts.is_running())?;
    let name = nft::table_name("mpt", &file.interface);
    unless(facts.firewall.tables.as_ref()?.contains(&name), || {
        failed(
            format!("the table {name} of nftables is gone: peers do not reach the Internet"),
            "the tunnel restores it within a second; if not, its log has the reason: mpt reload",
        )
    })
}

pub fn forwarding(facts: &Facts) -> Outcome {
    let file = facts.file().filter(|file| forwards(file) && facts.is_running())?;
    let has = |ipv6: bool| file.addresses.iter().any(|address| address.addr().is_ipv6() == ipv6);
    let families = [(false, "IPv4", "net.ipv4.ip_forward"), (true, "IPv6", "net.ipv6.conf.all.forwarding")];
    let off =
        families.into_iter().zip(facts.host.forwarding).filter(|((ipv6, ..), on)| has(*ipv6) && *on == Some(false));
    Some(
        off.map(|((_, family, sysctl), _)| Finding {
            // A host with several peers need not connect them.
            severity: if file.masquerade { FindingSeverity::Failed } else { FindingSeverity::Warning },
            cause: format!("this host does not forward {family}: peers reach it, and nothing behind it"),
            cure: format!("sysctl -w {sysctl}=1, and the same line in /etc/sysctl.d"),
        })
        .collect(),
    )
}

/// Returns true for a gateway, and for a host to which several peers connect.
fn forwards(file: &File) -> bool {
    file.masquerade || (*file.mode == Mode::Native && file.peers.len() > 1)
}

pub fn forward_policy(facts: &Facts) -> Outcome {
    facts.file().filter(|file| forwards(file))?;
    facts.firewall.tables.as_ref()?;
    let name = &facts.interface;
    Some(
        facts
            .firewall
            .forward_drops
            .iter()
            .map(|chain| {
                let cause = format!("{chain} drops forwarded packets, and its table has no rule for {name}");
                warning(
                    cause,
                    format!("admit the tunnel there: rules that accept what is forwarded from and to {name}"),
                )
            })
            .collect(),
    )
}

pub fn conntrack(facts: &Facts) -> Outcome {
    let (count, max) = facts.host.conntrack.filter(|(_, max)| *max > 0)?;
    unless(count * 10 < max * 9, || {
        let cause = format!(
            "the table of connections has {count} of {max} entries: new connections are dropped when it is full"
        );
        warning(cause, format!("sysctl -w net.netfilter.nf_conntrack_max={}", max * 4))
    })
}
