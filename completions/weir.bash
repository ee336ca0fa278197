# bash completion for weir; made by man/update.

_weir_flags() { # COMMAND
    case $1 in
    bench)
        echo '--busy= --configuration= --device= --iterations= --json= --pace= --repeat= --report= --trace-events= --help'
        ;;
    info)
        echo '--all --cache-limit= --cache= --decay= --device= --engine= --grow-ahead= --growth= --harden= --internal-dependencies= --json --keep-free= --latency= --limit= --log= --oom-report= --peers= --prealloc-min= --prealloc= --priority= --processes --profile= --recovery-timeout= --registry= --release-threshold= --stream-checks= --help'
        ;;
    record)
        echo '--callers --limit= --mark-at-nvtx= --mark-at-sync --output= --help'
        ;;
    replay)
        echo '--busy= --cache-limit= --cache= --decay= --device= --engine= --explain --grow-ahead= --growth= --harden= --internal-dependencies= --iterations= --json= --keep-free= --latency= --limit= --log= --oom-report= --pace= --peers= --prealloc-min= --prealloc= --priority= --profile= --recovery-timeout= --registry= --release-threshold= --repeat= --report= --stream-checks= --trace-events= --help'
        ;;
    report)
        echo '--output= --help'
        ;;
    run)
        echo '--cache-limit= --cache= --decay= --dry-run --engine= --group-limit= --group= --grow-ahead= --growth= --harden= --internal-dependencies= --json= --keep-free= --latency= --limit= --log= --no-env --no-torch --oom-report= --peers= --prealloc-min= --prealloc= --priority= --profile= --recovery-timeout= --registry= --release-threshold= --report= --serve-malloc --settings= --stats --stream-checks= --trace-events= --verbose --help'
        ;;
    top)
        echo '--group= --interval= --json --once --pid= --help'
        ;;
    torch)
        echo '--build --help'
        ;;
    tune)
        echo '--device= --goal= --limit= --output= --help'
        ;;
    esac
}

# Words, or FILE, or nothing where only the user knows; it fails where the next word is no value.
_weir_values() { # COMMAND FLAG
    case $1$2 in
    bench--json | bench-j | bench--report | bench--trace-events | info--json= | info--oom-report | info--profile | record--output | record-o | replay--json | replay-j | replay--report | replay--trace-events | replay--oom-report | replay--profile | report--output | report-o | run--json | run-j | run--report | run--settings | run--trace-events | run--oom-report | run--profile | tune--output | tune-o) echo 'FILE' ;;
    bench--busy | bench-b | bench--iterations | bench-i | bench--pace | bench-p | bench--repeat | bench-r | info--cache-limit | info--decay | info--grow-ahead | info--keep-free | info--limit | info--peers | info--prealloc | info--prealloc-min | info--priority | info--recovery-timeout | info--release-threshold | record--limit | record--mark-at-nvtx | replay--busy | replay-b | replay--explain= | replay--iterations | replay-i | replay--pace | replay-p | replay--repeat | replay-r | replay--cache-limit | replay--decay | replay--grow-ahead | replay--keep-free | replay--limit | replay--peers | replay--prealloc | replay--prealloc-min | replay--priority | replay--recovery-timeout | replay--release-threshold | run--group | run--group-limit | run--cache-limit | run--decay | run--grow-ahead | run--keep-free | run--limit | run--peers | run--prealloc | run--prealloc-min | run--priority | run--recovery-timeout | run--release-threshold | top--group | top--interval | top-i | top--pid | top-p | tune--limit) echo '' ;;
    bench--configuration | bench-c) echo 'driver driver-keep pool pool-prealloc pool-prealloc-75 pool-threshold bfc-75 bfc-least bfc mapped direct driver-warm pool-unchecked mapped-trusted pool-learned mapped-learned pool-ahead mapped-ahead' ;;
    bench--device | bench-d | info--device | replay--device | tune--device | tune-d) echo 'cuda model' ;;
    info--cache | info--internal-dependencies | info--latency | info--registry | info--stream-checks | replay--cache | replay--internal-dependencies | replay--latency | replay--registry | replay--stream-checks | run--cache | run--internal-dependencies | run--latency | run--registry | run--stream-checks) echo 'on off' ;;
    info--engine | replay--engine | run--engine) echo 'mapped pool bfc bfc-fixed direct' ;;
    info--growth | replay--growth | run--growth) echo 'exact step geometric remaining bfc' ;;
    info--harden | replay--harden | run--harden) echo 'off poison guard zero-stream zero-always' ;;
    info--log | replay--log | run--log) echo 'none error warning info debug' ;;
    tune--goal) echo 'memory speed balanced' ;;
    *) return 1 ;;
    esac
}

_weir() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} flag='' values i
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W 'bench info record replay report run top torch tune help --help --version' -- "$word")
        return
    fi
    # `=' and `:' are words of their own where COMP_WORDBREAKS has them
    if [ "$word" = : ] || [ "$before" = : ]; then
        flag=:
    elif [ "$word" = = ]; then
        flag=$before word=
    elif [ "$before" = = ]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $word == --*=* ]]; then
        flag=${word%%=*} word=${word#*=}
    elif [[ $before == -* && $word != -* ]] && _weir_values "$command" "$before" >/dev/null; then
        flag=$before
    fi
    case $command in
    record | run | tune) # from its command on the words are that one's
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --) ((i++)); break ;;
            -* | = | :) ;;
            *) [[ ${COMP_WORDS[i - 1]} == [=:] ]] || _weir_values "$command" "${COMP_WORDS[i - 1]}" >/dev/null || break ;;
            esac
        done
        if ((i < COMP_CWORD)) || [[ $i -eq $COMP_CWORD && $word != -* && -z $flag ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset "$i"
            else
                mapfile -t COMPREPLY < <(compgen -c -f -- "$word")
            fi
            return
        fi
        ;;
    esac
    case $command in
    help)
        case $word in
        [PTWX]*) values='WEIR_ENGINE WEIR_PREALLOC WEIR_LIMIT WEIR_GROWTH WEIR_RELEASE_THRESHOLD WEIR_PROFILE WEIR_GROW_AHEAD WEIR_KEEP_FREE WEIR_DECAY WEIR_HARDEN WEIR_DEVICE WEIR_LOG WEIR_PREALLOC_MIN WEIR_RECOVERY_TIMEOUT WEIR_LATENCY WEIR_CACHE WEIR_CACHE_LIMIT WEIR_STREAM_CHECKS WEIR_INTERNAL_DEPENDENCIES WEIR_OOM_REPORT WEIR_REGISTRY WEIR_PRIORITY WEIR_PEERS WEIR_COMPAT WEIR_GROUP WEIR_GROUP_LIMIT WEIR_GROUP_SHARE WEIR_GROUP_DIR WEIR_MODEL_PROFILE WEIR_MODEL_DEVICES WEIR_MODEL_SHARED WEIR_RUN_STATS WEIR_RUN_JSON WEIR_RUN_TRACE WEIR_RUN_SAMPLES WEIR_RUN_FIRST WEIR_RUN_PREALLOC_OF WEIR_RUN_TOLD WEIR_RUN_TORCH WEIR_RUN_SERVE_MALLOC WEIR_RUN_VERBOSE WEIR_RUN_FOLDER WEIR_RECORD_FOLDER WEIR_RECORD_RANGES WEIR_RECORD_CALLERS WEIR_RECORD_SYNCS TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC XLA_PYTHON_CLIENT_PREALLOCATE XLA_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_ALLOCATOR TF_GPU_ALLOCATOR PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF TF_FORCE_GPU_ALLOW_GROWTH' ;;
        *) values='bench info record replay report run top torch tune settings engine prealloc limit growth release-threshold profile grow-ahead keep-free decay harden device log prealloc-min recovery-timeout latency cache cache-limit stream-checks internal-dependencies oom-report registry priority peers' ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        return
        ;;
    esac
    if [ -n "$flag" ]; then
        values=$(_weir_values "$command" "$flag" || _weir_values "$command" "$flag=")
        if [ "$values" = FILE ]; then
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        fi
    elif [[ $word == -* || $command == @(info|top) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_weir_flags "$command")" -- "$word")
        [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        case $command in bench | replay | tune)
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W 'gat-dynamic gpt2-dynamic gpt2-train multistream-infer resnet50-train' -- "$word") ;;
        esac
    fi
}
complete -o filenames -F _weir weir
