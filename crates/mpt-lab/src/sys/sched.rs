//! Scheduling priority of threads.

use nix::libc;

/// The scheduling class that a thread got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingClass {
    /// Real time: the thread runs before every ordinary process.
    Fifo,
    /// Ordinary with a raised priority.
    Nice,
    /// Ordinary: timing depends on the load of the machine.
    Ordinary,
}

/// Requests the most urgent scheduling class that is permitted, and exact timers.
pub fn raise_priority() -> SchedulingClass {
    // Has no effect on a real-time thread, whose timers are exact anyway; an ordinary one would be 50 us late.
    let _ = nix::sys::prctl::set_timerslack(1);
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: pid 0 is the calling thread; `param` is valid for the call, which only reads it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } == 0 {
        return SchedulingClass::Fifo;
    }
    // SAFETY: takes integers only; who = 0 is the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) } {
        0 => SchedulingClass::Nice,
        _ => SchedulingClass::Ordinary,
    }
}

/// Gives the calling thread the lowest priority.
pub fn lower_priority() {
    // SAFETY: takes integers only; who = 0 is the calling thread.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}
