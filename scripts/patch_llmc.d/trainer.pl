# The edits of train_gpt2.c, llmc/dataloader.h and the Makefile.
use strict;
use warnings;

our %FILE;
our $ONLY_ADAMW = 'The plugin only has llm.c\'s AdamW, so the losses would differ; restore llm.c\'s ';
my ($TRAINER, $LOADER, $MAKEFILE) = @FILE{qw(trainer loader makefile)};

# A row: file, function ('' for the whole file), what is done there, how. `how` gets the file and the range to
# look in. find() ends everything if the place is not there; instead() puts the original into an #else,
# before() and after() only add; known() compares what an edit replaces with what llm.c has had there.
our @edits = (
    [ $TRAINER, '', 'the plugin, its tensor table, rank 0 speaks', sub {
        my ($f, $in) = @_;
        my $include = find($f, $in, qr/^#include\s+"llmc\/utils\.h"/m, '#include "llmc/utils.h"');
        after($f, $include, helpers($f));
    } ],
    [ $TRAINER, 'gpt2_build_from_checkpoint', 'the plugin holds the parameters and reads them piece by piece', sub {
        my ($f, $in) = @_;
        my $allocate = find($f, $in, qr/model->params_memory\s*=\s*malloc_and_point_parameters\s*\([^;]*;/,
                            'model->params_memory = malloc_and_point_parameters(...);');
        my $read = find($f, rest($allocate, $in), qr/freadCheck\s*\(\s*model->params_memory\b[^;]*?(\w+)\s*\)\s*;/,
                        'freadCheck(model->params_memory, ..., file);');
        known($f, within(span($allocate, $read), $in), 'plain.read_parameters',
              'The plugin would read all parameters from here on, and do nothing else');
        instead($f, span($allocate, $read), "model->params_memory = NULL;",
                "z_create(model->param_sizes, model->config.num_layers);",
                "z_load($read->{1}, model->param_sizes, model->config.num_layers);");
    } ],
    [ $TRAINER, 'gpt2_forward', 'the model is there when the plugin is', sub {
        my ($f, $in) = @_;
        my $check = find($f, $in, qr/if\s*\(\s*model->params_memory\s*==\s*NULL\s*\)\s*\{/,
                         'if (model->params_memory == NULL) {');
        instead($f, $check, 'if (z == NULL) {');
    } ],
    [ $TRAINER, 'gpt2_forward', 'parameters of the embeddings: pointers while their unit is open', \&local_tensors ],
    [ $TRAINER, 'gpt2_forward', 'use of the embedding unit by the encoder', sub {
        embedding_use($_[0], before_loop(@_), 'forward');
    } ],
    [ $TRAINER, 'gpt2_forward', 'a layer is a unit, its pointers come from it', sub { layer_use(@_, 'forward') } ],
    [ $TRAINER, 'gpt2_forward', 'use of the embedding unit by the head', sub {
        embedding_use($_[0], after_loop(@_), 'forward');
    } ],
    [ $TRAINER, 'gpt2_forward', 'the loss is the mean over the ranks', sub {
        my ($f, $in) = @_;
        my $loss = find($f, $in, qr/model->mean_loss\s*=\s*(\w+)\s*;/, 'model->mean_loss = VARIABLE;');
        instead($f, $loss, "model->mean_loss = z_mean($loss->{1});");
    } ],
    [ $TRAINER, 'gpt2_backward', 'no gradients are allocated here', sub {
        my ($f, $in) = @_;
        my $lazy = find($f, $in, qr/if\s*\(\s*model->grads_memory\s*==\s*NULL\s*\)\s*\{/,
                        'if (model->grads_memory == NULL) {');
        my $allocate = find($f, rest($lazy, $in), qr/model->grads_memory\s*=\s*malloc_and_point_parameters\s*\([^;]*;/,
                            'model->grads_memory = malloc_and_point_parameters(...);');
        known($f, within(span($lazy, $allocate), $in), 'plain.allocate_gradients',
              'The plugin would allocate the gradients, and do nothing else');
        instead($f, span($lazy, $allocate), 'if (model->grads_acts_memory == NULL) {');
    } ],
    [ $TRAINER, 'gpt2_backward', 'pointers of the embeddings while their unit is open', \&local_tensors ],
    [ $TRAINER, 'gpt2_backward', 'use of the embedding unit by the head', sub {
        embedding_use($_[0], before_loop(@_), 'backward');
    } ],
    [ $TRAINER, 'gpt2_backward', 'a layer is a unit, its pointers come from it', sub { layer_use(@_, 'backward') } ],
    [ $TRAINER, 'gpt2_backward', 'use of the embedding unit by the encoder', sub {
        embedding_use($_[0], after_loop(@_), 'backward');
    } ],
    [ $TRAINER, 'gpt2_zero_grad', '', sub {
        my ($f, $in) = @_;
        my $clear = qr/memset\s*\(\s*model->grads_memory\s*,\s*0\s*,\s*model->num_parameters\s*\*\s*sizeof\s*\(\s*float\s*\)\s*\)/;
        understood($f, find($f, $in, qr/if\s*\(\s*model->grads_memory\s*!=\s*NULL\s*\)\s*\{?\s*$clear\s*;/,
                            'if (model->grads_memory != NULL) { memset(model->grads_memory, 0, ...); }'));
    } ],
    [ $TRAINER, 'gpt2_update', 'reduction and update by the plugin', sub {
        my ($f, $in) = @_;
        require_parameters($f, $in, qw(learning_rate beta1 beta2 eps weight_decay t));
        known($f, $in, 'plain.update', $ONLY_ADAMW . 'gpt2_update');
        instead($f, $in, 'zero_hyper hyper = { learning_rate, beta1, beta2, eps, weight_decay, 0.0f, t };',
                'z_check(zero_step(z, &hyper, NULL));');
    } ],
    [ $TRAINER, 'gpt2_free', 'digest of the parameters; the end of the plugin', sub {
        my ($f, $in) = @_;
        my $first = find($f, $in, qr/free\s*\(\s*model->params_memory\s*\)\s*;/, 'free(model->params_memory);');
        before($f, $first, 'z_finish();');
    } ],
    [ $TRAINER, 'main', 'each rank reads its part of the data, which is the same for all', sub {
        my ($f, $in) = @_;
        my ($rank, $ranks) = loader_arguments();
        my @calls = find_all($f, $in, qr/dataloader_init\s*\(([^;]*)\)\s*;/, 'dataloader_init(...);');
        for my $call (@calls) {
            my @list = split /\s*,\s*/, $call->{1};
            my $numbers = 'arguments number ' . ($rank + 1) . ' and ' . ($ranks + 1) . ' of dataloader_init';
            @list > $ranks && $list[$rank] eq '0' && $list[$ranks] eq '1'
                or missing($f, $call, "rank 0 of 1 as $numbers");
            @list[$rank, $ranks] = ('zero_rank(z)', 'zero_ranks(z)');
            $call->{new} = 'dataloader_init(' . join(', ', @list) . ');';
        }
        $calls[-1]{new} .= "\n" . compare_inputs($f, @calls);
        instead_each($f, @calls);
    } ],
    [ $TRAINER, 'main', 'a batch is that of all ranks', sub {
        my ($f, $in) = @_;
        my @prints = find_all($f, $in, qr/printf\s*\([^;]*num_tokens\s*\/\s*\(B\s*\*\s*T\)[^;]*;/,
                              'printf("... num_batches ...", loader.num_tokens / (B*T));');
        $_->{new} = text_of($f, $_) =~ s/\(B\s*\*\s*T\)/(B*T*zero_ranks(z))/r for @prints;
        instead_each($f, @prints);
    } ],
    [ $TRAINER, 'main', 'what pass it is: training, or evaluation and sampling, which all ranks run', sub {
        my ($f, $in) = @_;
        for my $pass (find_all($f, $in, qr/\bgpt2_forward\s*\([^;]*;/, 'gpt2_forward(...);')) {
            my $begin = trains($f, $pass) ? 'zero_begin_train(z, 0, 1)' : 'zero_begin_eval(z)';
            before($f, statement($f, $pass), "z_check($begin);");
        }
        plain_step($f, $in);
    } ],
    [ $LOADER, 'dataloader_init', 'the shuffle is the same on all ranks', sub {
        my ($f, $in) = @_;
        return if $f->{parameters}{dataloader_init} !~ /shuffle/;       # before the loader shuffled
        my $seed = find($f, $in, qr/manual_seed\s*\(([^;]*?)\s*\+\s*process_rank\s*\)\s*;/,
                        'manual_seed(..., SEED + process_rank);');
        instead($f, $seed, "manual_seed($seed->{1});");
    } ],
    [ $MAKEFILE, '', 'train_gpt2 is built with the plugin', sub {
        my ($f, $in) = @_;
        my $has = join '', map { "[^\\n]*\\\$$_" } qw{\(CFLAGS\) \^ \(LDLIBS\)};
        my $rule = find($f, $in, qr/^train_gpt2:[ \t]*train_gpt2\.c[^\n]*\n\t$has[^\n]*/m,
                        'the rule "train_gpt2: train_gpt2.c" with $(CFLAGS), $^ and $(LDLIBS)');
        insert($f, line_end($f, $rule->{to}), make_rules());
    } ],
);

# The edits use the parameters of a function by these names.
sub require_parameters {
    my ($f, $in, @names) = @_;
    my $function = $in->{function};
    $f->{parameters}{$function} =~ /\b$_\b/ or missing($f, $in, "a parameter $_ of $function") for @names;
}

1;
