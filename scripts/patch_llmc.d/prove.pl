# The proof: with the same small model and tokens, the original in one process and the patched trainer on 1, 2
# and 4 ranks must print the same losses and samples and write the same files. On each number of ranks,
# stages 0 and 3 must end with the same digest of the parameters.
use strict;
use warnings;
use feature 'signatures';
no warnings 'experimental::signatures';
use File::Temp qw(tempdir);

our (%files, %FILE, %option);

# A different order of fp32 sums changes a loss by less than 1e-6; the smallest silent error seen was 4e-6.
my $MOST = 2e-6;
my $ROWS = 4;           # of all ranks together
my $STEPS = 40;         # a loop over more steps is cut to this number
my %SHAPE = (positions => 1024, vocabulary => 512, layers => 2, heads => 2, channels => 64,
             tokens => 1 << 16);

# Returns a header in llm.c's format: 256 integers.
sub header { return pack 'l<256', @_, (0) x (256 - @_) }

# Returns a model file with twice the parameters of llm.c's GPT-2, so that forks may have more tensors.
sub model_bytes {
    my ($T, $V, $L, $C) = @SHAPE{qw(positions vocabulary layers channels)};
    my $n = 2 * ($V * $C + $T * $C + $L * (12 * $C * $C + 13 * $C) + 2 * $C);
    return header(20240326, 3, $T, $V, $L, $SHAPE{heads}, $C, $V)
        . pack 'f<*', map { rand() - 0.5 } 1 .. $n;
}

sub tokenizer_bytes {
    my $V = $SHAPE{vocabulary};
    return header(20240328, 2, $V, $V - 1) . join '', map { pack 'C/a', chr(97 + $_ % 26) } 1 .. $V;
}

# Returns a token file: a pattern that can be learned, and noise. $bits is the size of a token.
my $bits = 16;
sub data_bytes {
    my $V = $SHAPE{vocabulary};
    my @tokens = map { int(rand() < 0.2 ? rand($V) : $_ * $_ / 3 % 50) } 1 .. $SHAPE{tokens};
    return header(20240520, 1, scalar @tokens) . pack $bits == 32 ? 'V*' : 'v*', @tokens;
}

# Returns the file names that an argument of a call may have: a string, or the strings of variables.
sub names_of ($text, $argument, $depth = 0) {
    my @names = $argument =~ /"([^"\n]+)"/g;
    return @names if $depth > 3;
    for my $word ($argument =~ s/"[^"\n]*"//gr =~ /\b[A-Za-z_]\w*\b/g) {
        push @names, map { names_of($text, $_, $depth + 1) } $text =~ /\b\Q$word\E\s*=\s*([^;=][^;]*);/g;
    }
    return @names;
}

# Writes the files that the trainer's own calls name: the model, the tokenizer, the data.
my %made;
sub make_inputs ($folder, $text) {
    $text =~ s{//[^\n]*|/\*.*?\*/}{}gs;
    my $loader = -e "$folder/$FILE{loader}" ? read_whole("$folder/$FILE{loader}") : '';
    $bits = 32 if "$loader$text" =~ /\bntok\w* \* sizeof\(uint32_t\)/;
    my %kind = (gpt2_build_from_checkpoint => \&model_bytes, tokenizer_init => \&tokenizer_bytes,
                dataloader_init => \&data_bytes);
    for my $call (sort keys %kind) {
        my @arguments = $text =~ /\b$call\s*\(\s*&\w+\s*,\s*((?:[^,()]|\([^()]*\))*)/g;
        for my $name (map { names_of($text, $_) } @arguments) {
            next if $name =~ m{^/|\.\.} || $name !~ /\w\.\w/;
            srand(42);
            write_whole("$folder/" . $name =~ s/[*?]/0/gr, $made{"$call $bits"} //= $kind{$call}->(), 0644);
        }
    }
}

# Sets the rows of a batch from the environment, and cuts the loop over the steps.
sub made_small ($text, $path) {
    my ($rows) = $text =~ /\bdataloader_init\s*\(\s*&\w+\s*,(?:[^,()]|\([^()]*\))*,\s*(\w+)\s*,/;
    my ($main) = $text =~ /^(?:int|void) main\s*\(/m ? $-[0] : unproven("$path: has no main()");
    my $before = substr $text, 0, $main, '';
    $rows && $text =~ s/\b\Q$rows\E\s*=\s*[^=;,][^;,]*/$rows = atoi(getenv("PATCH_LLMC_ROWS"))/
        or unproven("$path: dataloader_init(&LOADER, PATTERN, B, T, ...) with B = NUMBER; was not found: "
                    . 'give --build, --run and --losses');
    $text =~ /\bfor\s*\([^;]*;\s*step\s*<=?\s*(\w+)/ or return $before . $text;
    my $bound = $1;
    if ($bound =~ /^\d+$/) { $text =~ s/(;\s*step\s*<=?\s*)$bound\b/$1 . least($bound, $STEPS)/e }
    else { $text =~ s/(\b$bound\s*=\s*)(\d+)(\s*[;,])/$1 . least($2, $STEPS) . $3/e }
    return $before . $text;
}

# Copies a folder's files, but no large ones.
sub copy_tree ($from, $to) {
    my ($list) = output_of($from, qw(find . -name .git -prune -o -path ./build -prune -o -type f
                                  -size -1024k -printf), '%P\0');
    for my $name (split /\0/, $list) {
        write_whole("$to/$name", read_whole("$from/$name"), (stat "$from/$name")[2]);
    }
}

# Returns the output of a command in a folder, and undef or the reason why it failed.
sub output_of ($folder, @command) {
    my $seconds = $option{seconds} || 120;
    delete local @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS ZERO_CONFIG)};
    my $text = captured($folder, '>&STDOUT', 'timeout', '-k', '5', $seconds, @command);
    my $status = $? >> 8 || $? or return ($text, undef);
    return ($text,
        "still running after $seconds seconds; --seconds N allows more, --inputs DIR gives a smaller "
            . 'model or less data, and --run a command with fewer steps') if $status == 124;
    my @errors = $text =~ /^[^\n]*\berror: [^\n]*/mg;
    return ($text, join "\n    ", 'does not compile:', @errors > 8 ? @errors[0 .. 7] : @errors) if @errors;
    # without mpirun's notes
    my @lines = grep { /\S/ && !/^\[\S+:\d+\] / } split /\n/, $text =~ s/^-{70,}\n.*?^-{70,}\n//gmsr;
    splice @lines, 0, -6 if @lines > 6;
    return ($text, join "\n    ", "fails with status $status:", @lines);
}

# Ends the proof; the caller then prints the reason.
sub unproven ($why) { die { why => $why } }

sub built ($folder, $which) {
    my @command = $option{build} ? ('sh', '-c', $option{build}) : qw(make -j2 train_gpt2 ZERO_OPT=-O1);
    my ($text, $failed) = output_of($folder, @command);
    $failed // return;
    $failed =~ s/^(\s+([\w.\/]+)):(\d+)/"$1:" . ($files{$2} && $files{$2}{origin}[$3 - 1] || $3)/gem
        if $which =~ /patched/;
    unproven("$which: " . ($option{build} || 'make train_gpt2') . " $failed");
}

# Runs a trainer; returns what it printed and wrote. The files are removed, so that the next run writes them.
sub run_of ($folder, $which, $ranks, @launcher) {
    write_whole("$folder/.patch_llmc", '', 0644);
    my $rows = $ROWS / $ranks;
    my @command = $option{run} ? ('sh', '-c', $option{run} =~ s/\bROWS\b/$rows/gr) : './train_gpt2';
    my ($text, $failed) = output_of($folder, 'env', 'OMP_NUM_THREADS=1', "PATCH_LLMC_ROWS=$rows", @launcher,
        @command);
    unproven("$which: $failed") if $failed;
    my %written;
    for my $name (split /\0/, (output_of($folder, qw(find . -type f -newer .patch_llmc -printf),
        '%P\0'))[0]) {
        next if $name =~ /^\.patch_llmc$/ || $name =~ m{\.zero/};
        $written{$name} = read_whole("$folder/$name");
        unlink "$folder/$name";
    }
    my $loss = $option{losses} || '\bloss:?\s+(-?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))';
    my ($digest) = $text =~ /^params_hash (\w+)/m;
    return { which => $which, ranks => $ranks, losses => [$text =~ /$loss/gi],
             samples => join("\n", $text =~ /^---\n(.*?)^---$/msg),
             digest => $digest // 'none', files => \%written };
}

sub on_ranks ($folder, $stage, $ranks) {
    my $run = run_of($folder, "stage $stage, $ranks rank" . ($ranks > 1 ? 's' : ''), $ranks,
                     "ZERO_STAGE=$stage", 'ZERO_POISON=1', 'ZERO_CHECK=1',
                     'OMPI_ALLOW_RUN_AS_ROOT=1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1',
                     qw(mpirun --oversubscribe --bind-to none -np), $ranks);
    return { %$run, stage => $stage };
}

sub differ ($a, $b, $most = $MOST) {
    return lc $a ne lc $b if "$a$b" =~ /[a-z]{3}/i;
    return abs($a - $b) > $most * (abs($a) > 1 ? abs($a) : 1);
}

# Returns the index of the first number that differs, or undef.
sub first_difference ($expected, $got) {
    for my $i (0 .. $#$expected) {
        return $i if $i > $#$got || differ($expected->[$i], $got->[$i]);
    }
    return $#$got > $#$expected ? scalar @$expected : undef;
}

sub table ($from, $to, @runs) {
    my $row = sub { join('', map { sprintf '%18s', $_ } @_) . "\n" };
    my $text = $row->('loss number', map { $_->{which} } @runs);
    for my $i ($from .. $to) {
        $text .= $row->($i + 1, map { $_->{losses}[$i] // '-' } @runs);
    }
    return $text;
}

# Compares a file that the original wrote, twice, with the patched trainer's. Returns a note if the bytes
# differ. Numbers that the original writes differently each time, such as times, are not compared. Of a binary
# file, 1% of the numbers may differ: where a gradient is 0 but for rounding, AdamW still takes full steps.
my $NUMBER = qr/-?\d[\d.]*(?:e[-+]?\d+)?/i;
sub file_note ($name, $expected, $again, $run) {
    my $got = $run->{files}{$name};
    defined $got or unproven("$run->{which}: does not write $name, which the original writes");
    return '' if $got eq $expected;
    my $sizes = length($expected) . ' bytes by the original, ' . length($got) . ' by the patched trainer';
    length $got or unproven("$run->{which}: writes an empty $name ($sizes)");
    my $is_text = "$expected$got" !~ /[^\t\n\r -~]/;
    my ($one, $other, $same) = map { $is_text ? [/$NUMBER/g] : [unpack 'f<*', $_] }
        $expected, $got, $again // '';
    my $shape = sub { $is_text ? $_[0] =~ s/$NUMBER//gr : length $_[0] };
    $shape->($expected) eq $shape->($got) && @$one == @$other
        or unproven("$run->{which}: $name differs from the original's in more than numbers: $sizes");
    my @compared = grep { @$same != @$one || $same->[$_] eq $one->[$_] } 0 .. $#$one;
    my @wrong = grep { differ($one->[$_], $other->[$_], 1e-3) } @compared;
    my $i = $wrong[0];
    @wrong > ($is_text ? 0 : @$one / 100)
        and unproven("$run->{which}: $name differs from the original's, first at number " . ($i + 1)
                     . ": $one->[$i] and $other->[$i]");
    return "$name: the numbers agree to 1e-3; their last bits differ, because ranks add in another order\n";
}

# Compares a run with the original's. Returns notes on the files.
sub compared ($original, $run) {
    my $i = first_difference($original->{losses}, $run->{losses});
    defined $i and unproven('the losses differ from number ' . ($i + 1) . " on:\n"
                            . table($i > 2 ? $i - 2 : 0, $i + 1, $original, $run));
    $run->{samples} eq $original->{samples}
        or unproven("$run->{which}: the sampled text differs:\n$original->{samples}\n$run->{samples}");
    return grep { $_ } map { file_note($_, $original->{files}{$_}, $original->{again}{$_}, $run) }
        sort keys %{ $original->{files} };
}

# Runs both stages on so many ranks, and compares them. Returns the runs, with their notes.
sub both_stages ($folder, $original, $ranks) {
    my @runs = map {
        my $run = on_ranks($folder, $_, $ranks);
        $run->{notes} = [compared($original, $run)];
        $run
    } 0, 3;
    my ($one, $other) = @runs;
    $one->{digest} eq $other->{digest} or unproven("the digests of the parameters differ: $one->{which} "
        . "$one->{digest}, $other->{which} $other->{digest}");
    return @runs;
}

sub report ($original, @runs) {
    my $n = @{ $original->{losses} };
    my %notes = map { $_ => 1 } map { @{ $_->{notes} } } @runs;
    my @by_ranks = sort { $a->{ranks} <=> $b->{ranks} } grep { $_->{stage} } @runs;
    my @files = sort keys %{ $original->{files} };
    my @shown = ($original, @runs[0, 1]);
    return table(0, 1, @shown) . table($n - 1, $n - 1, @shown) =~ s/^.*\n//r
        . "$n losses agree to $MOST on " . join(', ', map { $_->{ranks} } @by_ranks)
            . ' ranks'
        . (@files ? ', and the files ' . join(', ', @files) : '')
        . '; parameters after the last step: digest '
        . join(', ', map { $_->{digest} } @by_ranks) . " at both stages\n"
        . join '', sort keys %notes;
}

# Copies a tree, with the inputs, and with changed files if given.
sub prepare ($from, $to, %new) {
    copy_tree($from, $to);
    write_whole("$to/$_", $new{$_}, 0644) for keys %new;
    my $path = "$to/$FILE{trainer}";
    if (!$option{run}) {
        -e $path or unproven("$from: has no $FILE{trainer}: give --build, --run and --losses");
        my $text = read_whole($path);
        make_inputs($to, $text) if !$option{inputs};
        write_whole($path, made_small($text, "$from/$FILE{trainer}"), 0644);
    }
    !$option{inputs} || system('cp', '-RL', "$option{inputs}/.", $to) == 0
        or unproven("$option{inputs}: cannot be copied");
}

# Proves a pair of trees, the second with changed files if given, and prints the report. If the proof fails,
# prints the reason and ends the script.
sub prove ($failure, $original, $patched, %new) {
    my $temporary = tempdir('patch_llmc.XXXXXX', TMPDIR => 1, CLEANUP => 1);
    my ($one, $other) = map { "$temporary/$_" } qw(original patched);
    my @ranks = $option{run} && $option{run} !~ /\bROWS\b/ ? 1 : (2, 1, 4);
    for ($original, $patched, grep { defined } $option{inputs}) { -d $_ or stop("$_: no such folder") }
    print 'building and running the original in 1 process and the patched trainer on ',
        join(', ', sort @ranks), " ranks\n",
        $option{cuda} ? "(train_gpt2.c only: train_gpt2.cu needs a GPU to run)\n" : '';
    my $report = eval {
        prepare($original, $one);
        prepare($patched, $other, %new);
        copy_plugin("$other/llmc_zero") if %new;
        built($one, 'original');
        built($other, 'patched trainer');
        my $expected = run_of($one, 'original', 1, 'OMPI_COMM_WORLD_RANK=0');
        $expected->{again} = run_of($one, 'original', 1, 'OMPI_COMM_WORLD_RANK=0')->{files}
            if %{ $expected->{files} };
        my $n = @{ $expected->{losses} };
        $n >= 4 or unproven("the original prints $n losses (\"loss NUMBER\"); the proof needs at least 4; "
                            . '--losses REGEX finds losses of another form');
        report($expected, map { both_stages($other, $expected, $_) } @ranks);
    };
    print $report // stop((ref $@ ? $@->{why} : $@) . "\n$failure");
}

1;
