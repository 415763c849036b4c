"""The refusals of a machine, in words: no room on a disk, no memory, no more threads, processes or open files."""

import errno
import resource
import threading

from stream_server.errors import ConfigError

# Of addresses: a stack of 8 MiB, and what malloc keeps apart for each thread.
THREAD_BYTES = (8 + 64) * 2**20
_ADVICE = {
    errno.EAGAIN: "Have the limits on processes and on memory raised (ulimit -u and -v), or run fewer at once",
    errno.ENOMEM: "Have more memory given to the job (ulimit -v and -d, the limit of the batch job)",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Have the limit on open files raised (ulimit -n)"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room there, or write another study.output_dir"),
    errno.EFBIG: "Have the limit on the size of a file raised (ulimit -f)",
    errno.ENAMETOOLONG: "Write a shorter study.name or study.output_dir",
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE),
        "It must be there, with nothing but folders above it: put it back, or write another study.output_dir",
    ),
    errno.EIO: "The disk or file system fails, of which the log of the kernel says more (dmesg). Once it works the "
    "study goes on from its newest checkpoint; in another study.output_dir it begins anew",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "See that you may write there, or write another study.output_dir; TMPDIR names the place of sockets",
    ),
}


def refusal(error: BaseException) -> str:
    """The text for an error by which the machine refused something, with what to do; "" if it is none of these."""
    number = None
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map segment" in str(error)):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and "start new thread" in str(error):
        number = errno.EAGAIN
    elif isinstance(error, OSError):
        number = error.errno
    advice = _ADVICE.get(number or 0)
    return "" if advice is None else f"{str(error) or 'the system has no memory for it'}. {advice}"


def require_threads(num: int) -> None:
    """See to it that this process may start so many threads: where ZeroMQ may not, it ends the process.

    Raises:
        ConfigError: it may not.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < num * THREAD_BYTES:
        raise ConfigError(
            f"{num} threads need {num * THREAD_BYTES >> 20:,} MiB of addresses, and the limit is {limit >> 20:,} MiB. "
            f"{_ADVICE[errno.EAGAIN]}"
        )
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(num)]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise ConfigError(
            f"{num} threads are needed, and only {len(started)} can be started: {refusal(error)}"
        ) from None
    finally:
        done.set()
        for thread in started:
            thread.join()
