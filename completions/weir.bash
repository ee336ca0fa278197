# bash completion for weir; made by man/update.

_weir_flags() { # COMMAND
    case $1 in
    bench)
        echo '--arena= --busy= --contestant= --decay= --device= --engine= --event-ring= --export= --front-cache= --front-idle= --front= --growth= --harden= --headroom= --internal-dependencies= --iterations= --json= --latency= --leave= --ledger= --limit-sweep --limit= --log= --micro --pace= --packing= --peers= --prealloc-at= --prealloc-deadline= --prealloc-min= --prealloc-mode= --prealloc= --priority= --profile= --quick --recovery-timeout= --release-threshold= --repeat= --report= --samples --scenario= --stream-checks= --subject= --threads= --threshold-sweep --trace-events= --verdict= --help'
        ;;
    convert)
        echo '--to= --help'
        ;;
    info)
        echo '--arena= --decay= --device= --engine= --event-ring= --export= --front-cache= --front-idle= --front= --growth= --harden= --headroom= --internal-dependencies= --json --latency= --leave= --ledger= --limit= --log= --measure --packing= --peers= --prealloc-at= --prealloc-deadline= --prealloc-min= --prealloc-mode= --prealloc= --priority= --processes --profile= --recovery-timeout= --release-threshold= --stream-checks= --verdict= --help'
        ;;
    record)
        echo '--limit= --mark-at-nvtx= --mark-at-sync --output= --help'
        ;;
    replay)
        echo '--arena= --busy= --decay= --device= --engine= --event-ring= --explain --export= --front-cache= --front-idle= --front= --growth= --harden= --headroom= --internal-dependencies= --iterations= --json= --latency= --leave= --ledger= --limit= --log= --pace= --packing= --peers= --prealloc-at= --prealloc-deadline= --prealloc-min= --prealloc-mode= --prealloc= --priority= --profile= --recovery-timeout= --release-threshold= --repeat= --report= --samples --stream-checks= --trace-events= --verdict= --help'
        ;;
    report)
        echo '--output= --help'
        ;;
    run)
        echo '--arena= --children --decay= --dry-run --engine= --event-ring= --export= --front-cache= --front-idle= --front= --growth= --harden= --headroom= --heap-profile= --internal-dependencies= --json= --latency= --leave= --ledger= --limit= --log= --no-children --no-env --no-top --packing= --peers= --prealloc-at= --prealloc-deadline= --prealloc-min= --prealloc-mode= --prealloc= --priority= --profile= --recovery-timeout= --release-threshold= --report= --serve-malloc --stats --stream-checks= --trace-events= --verbose --verdict= --help'
        ;;
    top)
        echo '--interval= --json --once --pid= --help'
        ;;
    esac
}

_weir_values() { # COMMAND FLAG
    case $1$2 in
    bench--contestant | bench-c) echo 'driver driver-keep platform pool pool-prealloc arena-fixed arena-grow arena-mapped arena-fit arena-fast driver-primed pool-unchecked arena-vouched pool-learned arena-learned pool-headroom arena-headroom' ;;
    bench--scenario) echo 'pair churn threads streams producer-consumer steal lifecycle' ;;
    bench--subject) echo 'loop driver pool arena pool-bound arena-bound malloc mimalloc tcmalloc' ;;
    bench--arena) echo 'fixed regions mapped' ;;
    bench--engine) echo 'pool arena platform' ;;
    bench--export) echo 'on off' ;;
    bench--front) echo 'on off' ;;
    bench--growth) echo 'exact step geometric remaining bfc' ;;
    bench--harden) echo 'off poison guard zero-stream zero-always' ;;
    bench--internal-dependencies) echo 'on off' ;;
    bench--latency) echo 'on off' ;;
    bench--ledger) echo 'on off' ;;
    bench--log) echo 'none error warning info debug' ;;
    bench--packing) echo 'fit balanced fast' ;;
    bench--prealloc-at) echo 'create first' ;;
    bench--prealloc-mode) echo 'foreground background' ;;
    bench--stream-checks) echo 'on off' ;;
    info--arena) echo 'fixed regions mapped' ;;
    info--device) echo 'cuda model' ;;
    info--engine) echo 'pool arena platform' ;;
    info--export) echo 'on off' ;;
    info--front) echo 'on off' ;;
    info--growth) echo 'exact step geometric remaining bfc' ;;
    info--harden) echo 'off poison guard zero-stream zero-always' ;;
    info--internal-dependencies) echo 'on off' ;;
    info--latency) echo 'on off' ;;
    info--ledger) echo 'on off' ;;
    info--log) echo 'none error warning info debug' ;;
    info--packing) echo 'fit balanced fast' ;;
    info--prealloc-at) echo 'create first' ;;
    info--prealloc-mode) echo 'foreground background' ;;
    info--stream-checks) echo 'on off' ;;
    replay--arena) echo 'fixed regions mapped' ;;
    replay--device) echo 'cuda model' ;;
    replay--engine) echo 'pool arena platform' ;;
    replay--export) echo 'on off' ;;
    replay--front) echo 'on off' ;;
    replay--growth) echo 'exact step geometric remaining bfc' ;;
    replay--harden) echo 'off poison guard zero-stream zero-always' ;;
    replay--internal-dependencies) echo 'on off' ;;
    replay--latency) echo 'on off' ;;
    replay--ledger) echo 'on off' ;;
    replay--log) echo 'none error warning info debug' ;;
    replay--packing) echo 'fit balanced fast' ;;
    replay--prealloc-at) echo 'create first' ;;
    replay--prealloc-mode) echo 'foreground background' ;;
    replay--stream-checks) echo 'on off' ;;
    run--arena) echo 'fixed regions mapped' ;;
    run--engine) echo 'pool arena platform' ;;
    run--export) echo 'on off' ;;
    run--front) echo 'on off' ;;
    run--growth) echo 'exact step geometric remaining bfc' ;;
    run--harden) echo 'off poison guard zero-stream zero-always' ;;
    run--internal-dependencies) echo 'on off' ;;
    run--latency) echo 'on off' ;;
    run--ledger) echo 'on off' ;;
    run--log) echo 'none error warning info debug' ;;
    run--packing) echo 'fit balanced fast' ;;
    run--prealloc-at) echo 'create first' ;;
    run--prealloc-mode) echo 'foreground background' ;;
    run--stream-checks) echo 'on off' ;;
    esac
}

_weir() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} flag='' values i
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W 'bench convert info record replay report run top help --help --version' -- "$word")
        return
    fi
    # `=' is a word of its own where COMP_WORDBREAKS has it
    if [ "$word" = = ]; then
        flag=$before word=
    elif [ "$before" = = ]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $word == --*=* ]]; then
        flag=${word%%=*} word=${word#*=}
    elif [[ $before == -* && $word != -* && -n $(_weir_values "$command" "$before") ]]; then
        flag=$before
    fi
    case $command in
    record | run) # from its command on the words are that one's
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --) ((i++)); break ;;
            -* | =) ;;
            *) [[ ${COMP_WORDS[i - 1]} == = || " $(_weir_flags "$command") " == *" ${COMP_WORDS[i - 1]}= "* ]] || break ;;
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
        mapfile -t COMPREPLY < <(compgen -W 'bench convert info record replay report run top settings device engine arena packing prealloc prealloc-at prealloc-min prealloc-deadline prealloc-mode headroom growth limit release-threshold recovery-timeout event-ring latency log front front-cache front-idle stream-checks harden profile decay internal-dependencies verdict ledger priority leave peers export' -- "$word")
        return
        ;;
    esac
    if [ -n "$flag" ]; then
        values=$(_weir_values "$command" "$flag")
        if [ -n "$values" ]; then
            mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_weir_flags "$command")" -- "$word")
        [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        case $command in bench | convert | replay)
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W 'gat-dynamic gpt2-dynamic gpt2-train multistream-infer resnet50-train' -- "$word") ;;
        esac
    fi
}
complete -o filenames -F _weir weir
