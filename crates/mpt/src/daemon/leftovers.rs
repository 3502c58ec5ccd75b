//! State of a tunnel that outlives its process: a kill switch, rules, routes, the settings of a gateway, and name
//! servers. A socket file leads `mpt down` to it.

use mpt_linux::netlink::Netlink;
use mpt_linux::privilege::Capability;
use nix::unistd::geteuid;

use super::bypass_rules::BypassRules;
use super::kill_switch::KillSwitch;
use super::name_servers::Restorer;
use super::policy_routing::{self, PolicyRouting};
use super::{gateway, routes, user};
use crate::Failure;
use crate::config::File;
use crate::control::RunDir;

/// Leaves a socket file if the failed tunnel, or an earlier one, left state behind, so that `mpt down` finds it. Adds a
/// hint if the kill switch stays active.
pub(super) fn with_leftover_state(name: &str, run: &RunDir, failure: Failure) -> Failure {
    let Ok(_alone) = run.claim(name) else { return failure };
    let Ok(mut netlink) = Netlink::open() else { return failure };
    let rules = PolicyRouting::of(name).existing_rules(&mut netlink).unwrap_or_default();
    let routes = routes::stale_bypasses(name, run, &mut netlink).unwrap_or_default();
    let blocks = is_blocking(name);
    if blocks
        || BypassRules::of(name).is_active()
        || !rules.is_empty()
        || !routes.is_empty()
        || run.undo_file(name).exists()
    {
        run.leave_marker(name);
    }
    if !blocks {
        return failure;
    }
    let holds = format!("the kill switch stays active until the tunnel is up again; `mpt down {name}` removes it");
    let hint = failure.hint.as_ref().map_or(holds.clone(), |hint| format!("{hint}; {holds}"));
    failure.hint(hint)
}

/// Returns true if a kill switch of the tunnel with this interface is active, as far as this user may know.
pub fn is_blocking(interface: &str) -> bool {
    let rules = Netlink::open().and_then(|mut netlink| PolicyRouting::of(interface).existing_rules(&mut netlink));
    policy_routing::is_kill_switch(&rules.unwrap_or_default()) || KillSwitch::of(interface).is_active()
}

/// Removes what the tunnel with this interface left behind when it was killed. Returns true if there was anything.
///
/// # Errors
/// The tunnel is running, or the system refused a change.
pub fn clean_up(interface: &str) -> Result<bool, Failure> {
    let run = RunDir::from_env();
    let name_servers = geteuid().is_root().then(|| Restorer::start(interface)).transpose()?;
    if run.path().exists() {
        user::give_up_root(&run, &[Capability::NetAdmin])?;
    }
    let _alone = run.claim(interface)?;
    let mut netlink = Netlink::open()?;
    let rules = PolicyRouting::of(interface).clear(&mut netlink)?
        | KillSwitch::of(interface).clear()?
        | BypassRules::of(interface).clear()?;
    let routes = routes::clean(interface, &run, &mut netlink)?;
    let forwarding = gateway::clean(interface, &run)?;
    let name_servers = name_servers.map_or(Ok(false), Restorer::restore)?;
    Ok(forwarding | rules | routes | name_servers | run.remove_marker(interface))
}

/// Activates the kill switch of a tunnel that is not running, before the network is up. The next start takes it over.
///
/// # Errors
/// The configuration has no kill switch, the tunnel is running, or the system refused a change.
pub fn activate_kill_switch(file: &File) -> Result<(), Failure> {
    if !policy_routing::has_kill_switch(file) {
        let failure = Failure::new(format!("{} has no kill switch", file.path.display()));
        return Err(failure.hint("kill_switch = true at the top of the file"));
    }
    let run = RunDir::from_env();
    user::give_up_root(&run, &[Capability::NetAdmin])?;
    run.create()?;
    let _alone = run.claim(&file.interface)?;
    KillSwitch::of(&file.interface).apply(file, &mut Netlink::open()?)?;
    if !run.names().contains(&file.interface) {
        run.leave_marker(&file.interface);
    }
    Ok(())
}
