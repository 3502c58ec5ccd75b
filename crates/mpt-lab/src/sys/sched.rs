//! Being on the processor in time.

use nix::libc;

/// What the calling thread was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Real time: it runs before every ordinary process.
    Fifo,
    /// Ordinary, but favoured.
    Nice,
    /// Nothing: timing depends on what else the machine does.
    Ordinary,
}

/// Asks for the most urgent scheduling that is permitted, and for exact timers.
pub fn hurry() -> Urgency {
    // Has no effect on a real-time thread, whose timers are exact anyway; without it an ordinary one is 50 us late.
    let _ = nix::sys::prctl::set_timerslack(1);
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread; `param` is valid for the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } == 0 {
        return Urgency::Fifo;
    }
    // SAFETY: takes integers only; who = 0 is the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) } {
        0 => Urgency::Nice,
        _ => Urgency::Ordinary,
    }
}

/// Puts the calling thread behind all others.
pub fn yield_to_all() {
    // SAFETY: takes integers only; who = 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}
