//! Clock, kernel and processor.

use super::{Outcome, unless, warning};
use crate::config::model::Mode;
use crate::doctor::facts::Facts;

pub fn clock_behind(facts: &Facts) -> Outcome {
    let Some((file, ahead)) = &facts.host.future_file else { return Some(Vec::new()) };
    let cause = format!("the clock is at least {} s behind: {} was written later", ahead.as_secs(), file.display());
    Some(vec![warning(
        cause,
        "set the clock: timedatectl set-ntp true; peers refuse handshakes that are older than the last one",
    )])
}

pub fn clock_synchronised(facts: &Facts) -> Outcome {
    unless(facts.host.clock_synchronised?, || {
        warning("no time service keeps the clock of this host right", "timedatectl set-ntp true, or install chrony")
    })
}

pub fn offload(facts: &Facts) -> Outcome {
    let problems = &facts.host.socket.as_ref()?.offload_problems;
    let file = facts.file()?;
    if !file.offload {
        return None;
    }
    unless(problems.is_empty(), || {
        let cause = format!("the kernel handles one datagram at a time ({})", problems.join(", "));
        warning(cause, "a kernel from 5.0 on has both; a container's runtime (gVisor) may lack them")
    })
}

pub fn receive_buffer(facts: &Facts) -> Outcome {
    if !facts.is_root {
        return None;
    }
    let (has, wanted) = facts.host.socket.as_ref()?.receive_buffer;
    unless(has >= wanted, || {
        let cause =
            format!("the kernel limits the receive buffer of a socket to {has} bytes of {wanted}: bursts are lost");
        warning(cause, format!("sysctl -w net.core.rmem_max={wanted}, on the host of a container"))
    })
}

pub fn aes(facts: &Facts) -> Outcome {
    if *facts.file()?.mode != Mode::Native {
        return None;
    }
    unless(facts.host.aes?, || {
        warning(
            "the processor has no instructions for AES: it encrypts with ChaCha20-Poly1305, at some hundred Mbit/s",
            "enable AES for the virtual machine (CPU type host), or use another machine for faster links",
        )
    })
}
